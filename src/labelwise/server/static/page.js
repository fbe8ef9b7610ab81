// What every page does: open and close dialogs, say when the server cannot be reached, and when a picture is broken.
"use strict";

const trouble = document.getElementById("trouble");

function say(text) {
  trouble.textContent = text;
  trouble.hidden = !text;
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) document.querySelector(opener.dataset.open).showModal();
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

// What is typed or chosen before htmx listens would go nowhere, so such fields wake up with it.
document.addEventListener("htmx:load", (event) => {
  for (const fields of event.detail.elt.querySelectorAll("fieldset[data-wakes]")) fields.disabled = false;
  event.detail.elt.querySelector("fieldset[data-wakes] [autofocus]")?.focus();
});

// Errors of pictures do not bubble; they are caught on their way down. The server's words say what is wrong.
async function broken(image) {
  const text = document.createElement("p");
  text.className = "bad";
  image.replaceWith(text);
  try {
    const reply = await fetch(image.src);
    text.textContent = reply.ok ? "This picture cannot be shown." : "This picture cannot be shown: " + (await reply.text());
  } catch {
    text.textContent = "This picture did not arrive; the server does not answer.";
  }
}
document.addEventListener("error", (event) => {
  if (event.target.tagName === "IMG") broken(event.target);
}, true);
document.addEventListener("load", (event) => {
  if (event.target.tagName === "IMG") event.target.classList.toggle("tiny", event.target.naturalWidth < 80);
}, true);
for (const image of document.images) {
  if (image.complete && image.naturalWidth === 0) broken(image);
  else image.classList.toggle("tiny", image.complete && image.naturalWidth < 80);
}

// What is said of an answer that is not saved yet stays until it is.
function sayOfServer(text) {
  if (!document.body.dataset.unsaved) say(text + " Trying again; nothing you saved is lost.");
}
document.addEventListener("htmx:sendError", () => sayOfServer("The server does not answer."));
document.addEventListener("htmx:timeout", () => sayOfServer("The server is slow to answer."));
document.addEventListener("htmx:responseError", (event) => {
  const reply = event.detail.xhr;
  say(reply.status === 401 || reply.status === 403 ? reply.responseText : "This did not work: " + reply.responseText.slice(0, 300));
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful && !document.body.dataset.unsaved) say("");
});
