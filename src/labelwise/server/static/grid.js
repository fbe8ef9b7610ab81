// The grid: each item is answered on its own. An answer stays in the browser's storage until the server confirms that it is
// on disk, and is sent again with the same token as often as necessary.
"use strict";

const STORAGE_PREFIX = "labelwise:" + document.body.dataset.who + ":";
const grid = document.getElementById("grid");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const tiles = () => [...grid.querySelectorAll(".tile")];
const waiting = () => tiles().filter((tile) => !tile.classList.contains("done"));
const marked = () => grid.querySelector(".tile.marked");
let shownAt = performance.now();  // since when the time of the next answer counts
let sending = 0;
let queue = Promise.resolve();  // answers arrive in the order in which they are given, and an undo after them

function post(path, fields) {
  return fetch(path, {
    method: "POST",
    headers: { "X-CSRF-Token": document.body.dataset.csrf, "Content-Type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields),
    signal: AbortSignal.timeout(15000),
  });
}

function mark(tile) {
  for (const other of tiles()) other.classList.toggle("marked", other === tile);
  if (!tile) return;
  const field = tile.querySelector(".number input");
  (field || tile).focus({ preventScroll: true });
  tile.scrollIntoView({ block: "nearest" });
}

function told(tile, html) {
  const place = tile.querySelector(".told");
  place.innerHTML = html;  // of the server, which escapes what people wrote
  document.getElementById("said").textContent = place.textContent;
}

// The item is marked as done at once, and opened again if the server refuses.
function send(tile, kind, value) {
  if (tile.classList.contains("done")) return;
  const now = performance.now();
  const fields = {
    token: tile.dataset.token, kind, value: value || "", note: "", seconds: Math.max(0, (now - shownAt) / 1000).toFixed(3),
    copies: tile.querySelector('[data-do="copies"][aria-pressed="true"]') ? "yes" : "",
  };
  shownAt = now;
  const key = STORAGE_PREFIX + fields.token;
  localStorage.setItem(key, JSON.stringify(fields));
  tile.classList.add("done");
  sending += 1;
  queue = queue.then(() => deliver(tile, key, fields));
}

async function deliver(tile, key, fields) {
  for (let pause = 300; ; pause = Math.min(2 * pause, 5000)) {
    const reply = await post("/tile", fields).catch(() => null);
    const text = reply && await reply.text().catch(() => null);
    if (text !== null && reply && (reply.ok || [409, 422].includes(reply.status))) {
      localStorage.removeItem(key);
      if (reply.status === 422) {
        tile.classList.remove("done");
        tile.querySelector(".told").textContent = text;
      } else told(tile, text);
      break;
    }
    document.body.dataset.unsaved = "yes";
    say("Answers are not saved yet: " + ((text || "").slice(0, 300) || "the server does not answer.") + " Trying again; keep this page open.");
    if (reply && [401, 403].includes(reply.status)) { tile.classList.remove("done"); break; }
    await wait(pause);
  }
  sending -= 1;
  if (!sending) { delete document.body.dataset.unsaved; say(""); }
  htmx.trigger(document.body, "answered");
  if (!sending && !waiting().length) await more();
}

function answer(tile, kind, value) {
  const left = waiting();
  const next = left[left.indexOf(tile) + 1] || left.find((other) => other !== tile);
  send(tile, kind, value);
  mark(next || null);
}

async function more() {
  for (;;) {
    const reply = await fetch("/tiles").catch(() => null);
    if (reply && reply.ok) { show(await reply.text()); return; }
    if (reply && reply.status < 500) { say(await reply.text()); return; }
    await wait(1500);
  }
}

function show(html) {
  grid.innerHTML = html;
  shownAt = performance.now();
  mark(waiting()[0] || null);
  grid.dataset.shown = String(1 + Number(grid.dataset.shown || 0));
}
setInterval(() => { if (!sending && !tiles().length && !document.hidden) more(); }, 1500);

function undo() {
  queue = queue.then(takeBack);
}

async function takeBack() {
  const token = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const reply = await post("/tile/undo", { token }).catch(() => null);
  if (!reply) { say("Nothing was undone: the server does not answer. Try again."); return; }
  const holder = document.createElement("template");
  holder.innerHTML = await reply.text();
  const tile = holder.content.querySelector(".tile");
  if (!tile) { say(holder.content.textContent.trim()); return; }
  const old = grid.querySelector('.tile[data-row="' + tile.dataset.row + '"]');
  if (old) old.replaceWith(tile); else grid.querySelector(".grid").prepend(tile);
  htmx.trigger(document.body, "answered");
  mark(tile);
}

const accept = (tile) => { if (tile && tile.dataset.suggested && !guessesHidden()) answer(tile, "label", tile.dataset.suggested); };
function acceptRow() {
  const tile = marked();
  if (!tile || guessesHidden()) return;
  const row = waiting().filter((other) => other.dataset.suggested && Math.abs(other.offsetTop - tile.offsetTop) < 4);
  for (const other of row) send(other, "label", other.dataset.suggested);
  mark(waiting()[0] || null);
}
function copies(tile) {
  const button = tile && tile.querySelector('[data-do="copies"]');
  if (button) flip(button);
}

// The item in a direction: the nearest one in the next row, or the neighbour.
function move(key) {
  const all = tiles(), now = marked() || all[0];
  if (!now) return;
  if (key === "ArrowLeft" || key === "ArrowRight") { mark(all[all.indexOf(now) + (key === "ArrowRight" ? 1 : -1)] || now); return; }
  const down = key === "ArrowDown";
  const others = all.filter((one) => down ? one.offsetTop > now.offsetTop + 4 : one.offsetTop < now.offsetTop - 4);
  const far = (one) => 1000 * Math.abs(one.offsetTop - now.offsetTop) + Math.abs(one.offsetLeft - now.offsetLeft);
  mark(others.sort((a, b) => far(a) - far(b))[0] || now);
}

grid.addEventListener("click", (event) => {
  const tile = event.target.closest(".tile"), button = event.target.closest("button");
  if (button && button.dataset.do === "all") acceptRow();
  else if (button && button.dataset.do === "undo") undo();
  else if (button && button.dataset.do === "hide") hideGuesses(!guessesHidden());
  else if (button && button.dataset.do === "keys") document.getElementById("keys").showModal();
  else if (button && button.dataset.do === "copies") copies(tile);
  else if (button && button.dataset.do === "save") answer(tile, "label", chosenSet(tile));
  else if (button && button.dataset.value !== undefined && tile.dataset.multi !== undefined) { flip(button); mark(tile); }
  else if (button && button.dataset.value !== undefined) answer(tile, "label", button.dataset.value);
  else if (tile && !event.target.closest("input, select")) mark(tile);
});
grid.addEventListener("change", (event) => {
  if (event.target.tagName === "SELECT" && event.target.value) answer(event.target.closest(".tile"), "label", event.target.value);
});
grid.addEventListener("submit", (event) => {
  event.preventDefault();
  answer(event.target.closest(".tile"), "label", event.target.elements.value.value);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input, select");
  if (event.key === "Escape" && typing) { typing.blur(); return; }
  if (typing) return;
  const tile = marked();
  if (event.key.startsWith("Arrow")) { event.preventDefault(); move(event.key); }
  else if (event.key === "Enter" && !event.target.closest("button, a")) { event.preventDefault(); if (event.shiftKey) acceptRow(); else if (tile && tile.dataset.multi !== undefined) answer(tile, "label", chosenSet(tile)); else accept(tile); }
  else if (event.key === "z" || event.key === "Backspace") { event.preventDefault(); undo(); }
  else if (event.key === ".") hideGuesses(!guessesHidden());
  else if (event.key === "=") copies(tile);
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (tile && event.key === "s") answer(tile, "skip");
  else if (tile && event.key === "u") answer(tile, "unsure");
  else if (tile && /^[0-9a-z]$/.test(event.key)) {
    const one = tile.querySelector('[data-key="' + event.key + '"]');
    if (one && !one.disabled && tile.dataset.multi !== undefined) { event.preventDefault(); flip(one); }
    else if (one && !one.disabled) { event.preventDefault(); answer(tile, "label", one.dataset.value || one.value); }
  }
});
window.addEventListener("beforeunload", (event) => { if (sending && document.body.dataset.unsaved) event.preventDefault(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) shownAt = performance.now(); });

// Send the answers that an earlier visit could not send.
(async () => {
  for (const key of Object.keys(localStorage).filter((one) => one.startsWith(STORAGE_PREFIX))) {
    const reply = await post("/tile", JSON.parse(localStorage.getItem(key))).catch(() => null);
    if (reply && (reply.ok || [409, 422].includes(reply.status))) localStorage.removeItem(key);
  }
})();
show(grid.innerHTML);
