// Charts, copy buttons, the finder's keys, and a line that says when the server does not answer. Everything else is HTML.
"use strict";

const lost = () => document.getElementById("lost");  // htmx replaces it with the page
document.addEventListener("htmx:error", () => { lost().hidden = false; });
document.addEventListener("htmx:after:swap", () => { lost().hidden = true; draw(); });
document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && event.detail.ctx.sourceElement.id === "main") event.preventDefault();  // nobody looks
});
document.addEventListener("htmx:after:request", (event) => {
  if (event.detail.ctx.text.includes('id="main"')) return;
  event.preventDefault();  // a proxy's error, say: to take it over would end this page
  lost().hidden = false;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button || !navigator.clipboard) return;  // no clipboard without TLS or loopback
  const from = document.getElementById(button.dataset.copy);
  await navigator.clipboard.writeText(from.href || from.textContent);
  button.textContent = "Copied";
});

document.addEventListener("keydown", (event) => {  // what looks like a button must act like one
  if (event.key === " " && event.target.matches("a[role=button]")) { event.preventDefault(); event.target.click(); }
});

const finder = document.querySelector(".finder");  // `/` leads to it from anywhere, arrows through it, Escape out of it

document.addEventListener("keydown", (event) => {
  const input = finder.querySelector("input");
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    input.select();
  } else if (finder.contains(event.target) && event.key === "Escape") {
    input.value = "";
    document.getElementById("finder-list").replaceChildren();
    document.activeElement.blur();
  } else if (finder.contains(event.target) && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    const stops = [input, ...finder.querySelectorAll("a")];
    stops.at((stops.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)) % stops.length).focus();
  }
});

const current = document.querySelector("nav [aria-current]");  // a phone shows a part of the pages
if (current) current.closest("ul").scrollLeft = current.offsetLeft - 100;

if (matchMedia("(max-width: 40rem)").matches) {  // on a phone the form would fill the screen
  for (const form of document.querySelectorAll("details.asked:not([data-keep])")) form.open = false;
}

const charts = new Map();

async function draw() {
  for (const [figure, one] of charts) if (!figure.isConnected) { one.plot.destroy(); charts.delete(figure); }
  for (const figure of document.querySelectorAll("figure.chart")) {
    const { kind, name, unit } = figure.dataset;
    const known = charts.get(figure);
    if (known && Date.now() - known.at < 15000 || figure.dataset.asking) continue;
    figure.dataset.asking = "yes";
    const answer = await fetch(`/api/history/${kind}?name=${encodeURIComponent(name)}`).catch(() => null);
    delete figure.dataset.asking;
    if (!answer || !answer.ok) continue;
    const found = await answer.json().catch(() => null);  // this page may be left meanwhile
    if (!found) continue;
    const { times, values } = found;
    if (known) { known.at = Date.now(); known.plot.setData([times, values]); continue; }
    const style = getComputedStyle(figure);
    const axis = { stroke: style.color, grid: { stroke: "rgba(128,128,128,0.25)" } };
    const utc = (seconds, from, to) => new Date(seconds * 1000).toISOString().slice(from, to).replace("T", " ");
    const hour = () => [Date.now() / 1000 - 3600, Date.now() / 1000];  // it ends now, however little is known
    const options = {
      width: Math.max(figure.clientWidth, 240), height: 180, legend: { live: true },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { x: { range: hour }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
      axes: [{ ...axis, values: (_, splits) => splits.map((at) => utc(at, 11, 16)) }, { ...axis, size: 70 }],
      series: [
        { label: "time", value: (_, at) => at == null ? "--" : utc(at, 0, 19) + " UTC" },
        { label: unit, stroke: style.getPropertyValue("--accent"), width: 2, points: { show: values.filter((one) => one != null).length < 5 } },
      ],
    };
    charts.set(figure, { at: Date.now(), plot: new uPlot(options, [times, values], figure) });
  }
}

addEventListener("resize", () => {
  for (const [figure, one] of charts) one.plot.setSize({ width: Math.max(figure.clientWidth, 240), height: 180 });
});
draw();
