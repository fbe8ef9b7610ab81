// Labelling: keys and buttons become answers. An answer stays in the browser's storage until the server confirms that it
// is on disk. It is sent again with the same token as often as necessary, and only then the next item is shown.
"use strict";

const STORAGE_PREFIX = "labelwise:" + document.body.dataset.who + ":";
const NUMBER = /^[0-9.,+\-eE]$/;
let busy = false;
let shownAt = performance.now();
let hiddenFor = 0;  // milliseconds the page was hidden since the item was shown: not time spent on it
let hiddenAt = null;
const preloaded = [];  // images of the next items; referenced here so that the browser keeps them

const card = () => document.getElementById("card");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const isShown = (element) => element && !element.closest("[hidden]");

function post(path, fields) {
  return fetch(path, {
    method: "POST",
    headers: { "X-CSRF-Token": document.body.dataset.csrf, "Content-Type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields),
    signal: AbortSignal.timeout(15000),
  });
}

function show(html, began) {
  const old = card();
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const next = holder.content.querySelector("#card");
  if (!next) return;
  old.replaceWith(next);
  htmx.process(next);
  ready(began);
}

function ready(began) {
  const now = card();
  shownAt = performance.now();
  hiddenFor = 0;
  hiddenAt = document.hidden ? shownAt : null;
  const title = document.getElementById("item-title");
  document.getElementById("said").textContent = [now.dataset.saved, title ? "Next: " + title.textContent : ""].join(" ");
  const number = document.getElementById("number");
  if (number) number.focus({ preventScroll: true });
  else if (title) title.focus({ preventScroll: true });
  for (const row of (now.dataset.ahead || "").split(",").filter(Boolean)) {
    const image = new Image();
    image.src = "/image/" + row + "?size=large";
    preloaded.push(image);
  }
  while (preloaded.length > 8) preloaded.shift();
  const picture = now.querySelector(".stage img");
  const done = () => requestAnimationFrame(() => {
    if (began !== undefined) now.dataset.took = Math.round(performance.now() - began);
    now.dataset.ready = "yes";
  });
  if (picture && !picture.complete) { picture.addEventListener("load", done); picture.addEventListener("error", done); }
  else done();
  htmx.trigger(document.body, "answered");
}

// Sends an answer until the server has replied. Returns true when it is saved and the next card is on the page.
async function sendAnswer(key, fields, began) {
  for (let pause = 300; ; pause = Math.min(2 * pause, 5000)) {
    let reply = null;
    try {
      reply = await post("/answer", fields);
    } catch { /* no reply: send the same again, with the same token */ }
    if (reply && (reply.ok || reply.status === 409)) {
      const html = await reply.text().catch(() => null);
      if (html !== null) {
        forget(key);
        show(html, began);
        return true;
      }
    } else if (reply && reply.status === 422) {
      forget(key);
      complain(await reply.text());
      return false;
    } else if (reply && (reply.status === 401 || reply.status === 403)) {
      document.body.dataset.unsaved = "yes";
      say("Your last answer is not saved yet: " + (await reply.text()) + " This browser keeps it, and sends it when the page opens again.");
      return false;
    }
    document.body.dataset.unsaved = "yes";
    const reason = reply && !reply.ok ? (await reply.text().catch(() => "")).slice(0, 300) : "the server does not answer.";
    say("Your last answer is not saved yet: " + reason + " Trying again; keep this page open.");
    await wait(pause);
  }
}

function forget(key) {
  localStorage.removeItem(key);
  delete document.body.dataset.unsaved;
  say("");
}

function complain(text) {
  const place = document.querySelector("#number-form .bad");
  if (place) { place.textContent = text; place.hidden = false; } else say(text);
}

async function answer(kind, value, button) {
  const now = card();
  if (busy || !now.dataset.token) return;
  const began = performance.now();
  const note = document.getElementById("note");
  const fields = {
    token: now.dataset.token, kind, value: value || "", note: note ? note.value : "",
    seconds: Math.max(0, (began - shownAt - hiddenFor) / 1000).toFixed(3),
    copies: document.querySelector('#card [data-do="copies"][aria-pressed="true"]') ? "yes" : "",
  };
  busy = true;
  now.classList.add("busy");
  if (button) button.classList.add("pressed");
  const key = STORAGE_PREFIX + fields.token;
  localStorage.setItem(key, JSON.stringify(fields));
  await sendAnswer(key, fields, began);
  busy = false;
  card().classList.remove("busy");
  if (button) button.classList.remove("pressed");
}

// With its own token, an undo that is sent again takes back one answer only.
async function undo() {
  if (busy) return;
  busy = true;
  const token = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  for (let pause = 300; ; pause = Math.min(2 * pause, 5000)) {
    try {
      const reply = await post("/undo", { token });
      const text = await reply.text();
      if (reply.ok) { say(""); show(text); break; }
      say(text);
      if (reply.status < 500) break;
    } catch {
      say("Your answer is not undone yet: the server does not answer. Trying again.");
    }
    await wait(pause);
  }
  busy = false;
}

function note() {
  const place = document.querySelector(".notes");
  if (!place) return;
  place.hidden = false;
  place.querySelector("textarea").focus();
}

const dialog = (id) => document.getElementById(id).showModal();
const DO = {
  skip: (button) => answer("skip", "", button),
  unsure: (button) => answer("unsure", "", button),
  undo, note,
  copies: flip,
  save: (button) => answer("label", chosenSet(card()), button),
  hide: () => hideGuesses(!guessesHidden()),
  class: () => dialog("new-class"),
  keys: () => dialog("keys"),
};
const KEYS = { s: "skip", u: "unsure", z: "undo", Backspace: "undo", n: "note", "+": "class", "?": "keys", ".": "hide", "=": "copies" };

document.addEventListener("click", (event) => {
  const button = event.target.closest("#card button");
  if (!button) return;
  if (button.dataset.value !== undefined && card().dataset.multi !== undefined) {
    flip(button);
    document.getElementById("item-title").focus({ preventScroll: true });  // so that Enter saves
  } else if (button.dataset.value !== undefined) answer("label", button.dataset.value, button);
  else if (button.dataset.do) DO[button.dataset.do](button);
});

function typing(event) {
  const field = event.target.closest("input, textarea, select");
  if (!field) return false;
  if (field.id !== "number") return true;
  return NUMBER.test(event.key) || event.key.length > 1 && !(event.key === "Backspace" && field.value === "");
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.activeElement) document.activeElement.blur();
    const find = document.getElementById("find");
    if (find) { find.value = ""; filterClasses(find); }
    return;
  }
  if (event.target.id === "find" && event.key === "Enter") {
    event.preventDefault();
    const first = [...document.querySelectorAll(".classes button")].find(isShown);
    if (first && event.target.value && card().dataset.multi !== undefined) { flip(first); event.target.value = ""; filterClasses(event.target); event.target.blur(); }
    else if (first && event.target.value) answer("label", first.dataset.value, first);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.querySelector("dialog[open]") || typing(event)) return;
  if (event.key === "Enter") {
    const save = document.querySelector('#card [data-do="save"]');
    if (save && !save.disabled && !event.target.closest("button, a, summary")) { event.preventDefault(); save.click(); return; }
    const suggested = !guessesHidden() && document.querySelector("#card [data-suggested]");
    if (!suggested || event.target.closest("button, a, summary")) return;  // those have their own meaning of Enter
    event.preventDefault();
    const wanted = [...document.querySelectorAll(".classes button")].find((one) => one.dataset.value === suggested.dataset.suggested);
    if (wanted && !wanted.disabled) wanted.click();
    return;
  }
  const find = document.getElementById("find");
  if (event.key === "/" && find) { event.preventDefault(); find.focus(); return; }
  const name = KEYS[event.key];
  const button = name
    ? document.querySelector('#card [data-do="' + name + '"]')
    : /^[0-9a-z]$/.test(event.key) && document.querySelector('#card [data-key="' + event.key + '"]');
  if (!button || button.disabled) return;
  event.preventDefault();
  button.click();
});

function filterClasses(find) {
  const text = find.value.trim().toLowerCase();
  for (const button of document.querySelectorAll(".classes button")) button.hidden = !button.dataset.value.toLowerCase().includes(text);
}
document.addEventListener("input", (event) => { if (event.target.id === "find") filterClasses(event.target); });

document.addEventListener("submit", async (event) => {
  if (event.target.id === "number-form") {
    event.preventDefault();
    answer("label", document.getElementById("number").value, event.target.querySelector("button"));
  }
  if (event.target.id === "new-class-form") {
    event.preventDefault();
    const form = event.target, bad = form.querySelector(".bad");
    try {
      const reply = await post("/class", { name: form.elements.name.value });
      const text = await reply.text();
      if (reply.ok) { form.closest("dialog").close(); form.reset(); bad.hidden = true; show(text); return; }
      bad.textContent = text;
    } catch {
      bad.textContent = "The server does not answer. Try again.";
    }
    bad.hidden = false;
  }
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) hiddenAt = performance.now();
  else if (hiddenAt !== null) { hiddenFor += performance.now() - hiddenAt; hiddenAt = null; }
});
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target && event.detail.target.id === "card") ready();
});
window.addEventListener("beforeunload", (event) => {
  if (busy && document.body.dataset.unsaved) event.preventDefault();
});

// Send the answers that an earlier visit could not send.
async function resend() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(STORAGE_PREFIX));
  busy = keys.length > 0;
  for (const key of keys) {
    try {
      await sendAnswer(key, JSON.parse(localStorage.getItem(key)));
    } catch {
      localStorage.removeItem(key);  // not written by this page: it cannot be read
    }
  }
  busy = false;
}

ready();
resend();
