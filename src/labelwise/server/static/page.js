// On every page: open and close dialogs, and report an unreachable server and broken images.
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

// A hint is shown until it was read, once in a browser.
for (const hint of document.querySelectorAll("[data-once]")) {
  const key = "labelwise-hint:" + location.host + ":" + document.title + ":" + hint.dataset.once;
  hint.hidden = localStorage.getItem(key) !== null;
  hint.querySelector("[data-seen]").addEventListener("click", () => { localStorage.setItem(key, "seen"); hint.hidden = true; });
}

// What models guess can be hidden, so that nobody is led by it. The choice stays in this browser.
const HIDE = "labelwise-hide-guesses:" + location.host;
function hideGuesses(hidden) {
  document.body.classList.toggle("no-guesses", hidden);
  localStorage.setItem(HIDE, hidden ? "yes" : "no");
}
hideGuesses(localStorage.getItem(HIDE) === "yes");
const guessesHidden = () => document.body.classList.contains("no-guesses");

// Where an item may have several classes, their buttons are marked and then saved together.
const flip = (button) => button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
const chosenSet = (holder) =>
  [...holder.querySelectorAll('[data-value][aria-pressed="true"]')].map((one) => one.dataset.value).join("|") || "(none)";

// Input before htmx is ready would be lost, so these fields are enabled by it.
document.addEventListener("htmx:load", (event) => {
  for (const fields of event.detail.elt.querySelectorAll("fieldset[data-wakes]")) fields.disabled = false;
  event.detail.elt.querySelector("fieldset[data-wakes] [autofocus]")?.focus();
});

// Error events of images do not bubble, so they are captured. The server's reply says what is wrong.
async function broken(image) {
  const text = document.createElement("p");
  text.className = "bad";
  image.replaceWith(text);
  try {
    const reply = await fetch(image.src);
    text.textContent = reply.ok ? "This image cannot be shown." : "This image cannot be shown: " + (await reply.text());
  } catch {
    text.textContent = "This image could not be loaded: the server does not answer.";
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

// A message about an unsaved answer stays until the answer is saved.
function sayOfServer(text) {
  if (!document.body.dataset.unsaved) say(text + " Trying again; saved answers are not affected.");
}
document.addEventListener("htmx:sendError", () => sayOfServer("The server does not answer."));
document.addEventListener("htmx:timeout", () => sayOfServer("The server is slow to answer."));
document.addEventListener("htmx:responseError", (event) => {
  const reply = event.detail.xhr;
  say(reply.status === 401 || reply.status === 403 ? reply.responseText : "The request failed: " + reply.responseText.slice(0, 300));
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful && !document.body.dataset.unsaved) say("");
});
