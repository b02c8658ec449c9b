// Makes pages live; without it all links and forms work.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const speak = text => { $("#spoken").textContent = text; };

// Live parts pause in a background tab and while a dialog is open, and are loaded when they are
// seen again.
const resting = () => document.hidden || $("#dialog")?.open;
document.addEventListener("htmx:beforeRequest", e => {
  if (e.target.matches("[data-live]") && resting()) e.preventDefault();
});
const refresh = () => {
  if (!resting()) document.querySelectorAll("[data-live]").forEach(el => htmx.trigger(el, "refresh"));
};
document.addEventListener("visibilitychange", refresh);

// A node that does not answer: the page keeps what it has.
const connected = ok => { $("#connection").hidden = ok; };
document.addEventListener("htmx:afterRequest", e => {
  const status = e.detail.xhr?.status;
  if (e.target.matches("[data-live]") && status !== undefined) connected(status > 0 && status < 500);
});

// Forms open in the dialog; an error of theirs is shown there too.
document.addEventListener("htmx:beforeSwap", e => {
  if (e.detail.target?.id === "dialog-body") e.detail.shouldSwap = true;
});
document.addEventListener("htmx:afterSwap", e => {
  const dialog = $("#dialog");
  if (e.detail.target?.id !== "dialog-body" || dialog.open) return;
  dialog.showModal();
  $("input:not([type=hidden]), textarea, select, button", dialog)?.focus();
});
$("#dialog")?.addEventListener("close", refresh);

document.addEventListener("click", e => {
  const copy = e.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard?.writeText(copy.dataset.copy).then(() => {
      copy.classList.add("done");
      speak("Copied");
      setTimeout(() => copy.classList.remove("done"), 1200);
    });
  }
  if (e.target.closest("[data-close]") && $("#dialog").open) {
    e.preventDefault();
    $("#dialog").close();
  }
  if (e.target === $("#dialog")) $("#dialog").close(); // the backdrop
});

document.addEventListener("change", e => {
  if (e.target.matches("[data-submit]")) e.target.form.requestSubmit();
  if (e.target.matches("#timebar input[type=range]")) travel(e.target);
});

// The slider shows the time while it moves, and asks for the past when it is released.
document.addEventListener("input", e => {
  if (e.target.matches("#timebar input[type=range]")) {
    $("#timebar output").textContent = new Date(+e.target.value).toISOString();
  }
});
function travel(slider) {
  const to = new URL(location.href);
  to.searchParams.delete("after"); // cursors belong to one instant
  if (slider.value === slider.max) to.searchParams.delete("at");
  else to.searchParams.set("at", new Date(+slider.value).toISOString());
  location.assign(to);
}
