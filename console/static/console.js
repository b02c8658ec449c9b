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

// Forms open in the dialog. A refusal is shown where the answer would be.
document.addEventListener("htmx:beforeSwap", e => {
  const status = e.detail.xhr.status;
  if (status >= 400 && (status < 500 || !e.target.matches("[data-live]"))) e.detail.shouldSwap = true;
});
document.addEventListener("htmx:afterSwap", e => {
  const dialog = $("#dialog");
  if (e.detail.target?.id !== "dialog-body" || dialog.open) return;
  dialog.showModal();
  $("input:not([type=hidden]), textarea, select, button", dialog)?.focus();
});
$("#dialog")?.addEventListener("close", refresh);

// Browsers have a clipboard only for https and this machine; elsewhere a selection is copied.
async function copyText(button) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(button.dataset.copy).then(() => true, () => false);
  }
  const area = document.createElement("textarea");
  area.value = button.dataset.copy;
  area.style.position = "fixed";
  area.style.opacity = 0;
  (button.closest("dialog") ?? document.body).append(area); // the outside of a dialog is inert
  area.select();
  const ok = document.execCommand("copy");
  area.remove();
  button.focus();
  return ok;
}
document.addEventListener("click", e => {
  const copy = e.target.closest("[data-copy]");
  if (copy) {
    copyText(copy).then(ok => {
      speak(ok ? "Copied" : "The browser does not permit to copy");
      copy.classList.toggle("done", ok);
      setTimeout(() => copy.classList.remove("done"), 1200);
    });
  }
  if (e.target.closest("[data-close]") && $("#dialog").open) {
    e.preventDefault();
    $("#dialog").close();
  }
  const step = e.target.closest("#timebar [data-at]");
  if (step) travel(step.dataset.at);
  if (e.target === $("#dialog")) $("#dialog").close(); // the backdrop
});

document.addEventListener("change", e => {
  if (e.target.matches(".filter select")) e.target.form.requestSubmit();
  if (e.target.matches(slider)) travel(instantOf(e.target));
});

// A form whose answer takes a while shows that it works.
document.addEventListener("submit", e => {
  const busy = $(".busy", e.target);
  if (busy) busy.hidden = false;
});

// Charts are drawn from the data-chart of the element that data-chart-of names, and again when that
// is loaded again, the window is resized or the theme changes.
// Its legend, which the element is labelled by, has totals, or what is under the pointer.
const charts = new Map(); // uPlot by element
function drawCharts() {
  document.querySelectorAll("[data-chart-of]").forEach(el => {
    const source = document.getElementById(el.dataset.chartOf);
    if (!source) return;
    const { times, series } = JSON.parse(source.dataset.chart);
    const data = [times, ...series.map(s => s.values)];
    if (charts.has(el)) charts.get(el).setData(data);
    else charts.set(el, new uPlot(chartOptions(el, series), data, el));
    charts.get(el).totals = series.map(s => s.total);
    showLegend(charts.get(el), el);
  });
}
function showLegend(plot, el) {
  const legend = document.getElementById(el.getAttribute("aria-labelledby"));
  const at = plot.cursor.idx ?? null;
  const shown = at === null ? plot.totals : plot.data.slice(1).map(values => values[at]);
  if (!legend || !shown) return;
  legend.querySelectorAll("b").forEach((b, i) => { b.textContent = shown[i].toLocaleString("en"); });
  $(".when", legend).textContent = at === null ? "" : new Date(plot.data[0][at] * 1000).toLocaleString();
}
function chartOptions(el, series) {
  const style = getComputedStyle(document.documentElement);
  const token = name => style.getPropertyValue("--" + name).trim();
  const axis = {
    stroke: token("muted"), font: "11px system-ui", ticks: { show: false },
    grid: { stroke: token("border"), width: 1 },
  };
  const dashes = { leased: [6, 4], dead: [2, 3] };
  return {
    width: el.clientWidth, height: 190, padding: [10, 16, 0, 0], legend: { show: false },
    cursor: { points: { size: 6 }, y: false, drag: { x: false } },
    hooks: { setCursor: [plot => showLegend(plot, el)] },
    scales: { y: { range: (u, min, max) => [0, Math.max(4, max * 1.1)] } },
    axes: [{ ...axis, grid: { show: false }, space: 70, size: 26, values: (u, ts) => ts.map(clock) }, { ...axis, size: 44, space: 36 }],
    series: [{}, ...series.map(s => ({
      label: s.name, stroke: token(s.colour), width: 1.5, dash: dashes[s.colour],
      fill: s.colour === "ready" ? token("ready-soft") : undefined,
      points: { show: false },
    }))],
  };
}
const clock = t => new Date(t * 1000).toTimeString().slice(0, 5);
function redrawCharts() {
  charts.forEach(c => c.destroy());
  charts.clear();
  drawCharts();
}
drawCharts();
document.addEventListener("htmx:afterSettle", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(redrawCharts, 150);
});

// The slider shows the time while it moves, and asks for the past when it is released.
const slider = "#timebar input[type=range]";
function instantOf(range) {
  if (range.value === range.max) return "";
  const { begin, end } = range.form.dataset;
  return new Date(+begin + (end - begin) * range.value / range.max).toISOString();
}
document.addEventListener("input", e => {
  if (e.target.matches(slider)) e.target.form.elements.at.value = instantOf(e.target);
});
document.addEventListener("submit", e => {
  if (!e.target.closest("#timebar")) return;
  e.preventDefault();
  travel(e.target.elements.at.value.trim());
});
function travel(at) {
  const to = new URL(location.href);
  to.searchParams.delete("after"); // cursors belong to one instant
  if (at === "" || at === "now") to.searchParams.delete("at");
  else to.searchParams.set("at", at);
  location.assign(to);
}

document.addEventListener("change", e => {
  if (e.target.matches("[data-check-all]")) {
    e.target.form.querySelectorAll("[name=id]").forEach(box => { box.checked = e.target.checked; });
  }
});
