// Numbers of a chart on hover, tap or focus: shows the text of the nearest data-tip next to the pointer.
"use strict";

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

function hideTip() {
  tip.hidden = true;
}

function showTip(event) {
  const found = event.target.closest?.("[data-tip]");
  if (!found || !found.dataset.tip) return hideTip();
  tip.textContent = found.dataset.tip;
  tip.hidden = false;
  const margin = 12, box = tip.getBoundingClientRect();
  let x = event.clientX + margin, y = event.clientY + margin;
  if (x + box.width > innerWidth - 4) x = Math.max(4, event.clientX - margin - box.width);
  if (y + box.height > innerHeight - 4) y = Math.max(4, event.clientY - margin - box.height);
  tip.style.left = x + "px";
  tip.style.top = y + "px";
}

document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("scroll", hideTip, true);
document.addEventListener("pointerleave", (event) => {
  if (event.pointerType === "mouse") hideTip(); // a finger leaves after each tap
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});

// A few pixels made large stay pixels.
for (const image of document.querySelectorAll(".report img")) {
  const mark = () => image.classList.toggle("tiny", image.naturalWidth > 0 && image.naturalWidth < 80);
  image.complete ? mark() : image.addEventListener("load", mark);
}
