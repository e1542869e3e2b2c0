// Live updates, times in the reader's zone, copy buttons, zoom. The pages work without this script.
"use strict";

function improve(root) {
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (isNaN(moment) || time.title) continue;
    time.title = time.textContent;
    time.textContent = zone.format(moment);
  }
  for (const hidden of root.querySelectorAll("button.copy, .zoom")) hidden.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } else if (button?.dataset.zoom) {
    const graph = document.querySelector("svg.graph");
    for (const side of ["width", "height"]) {
      graph.setAttribute(side, Math.round(graph.getAttribute(side) * button.dataset.zoom));
    }
  }
});

// --- live updates: after an event that may change this page, the page is fetched again ---------------------------

const live = document.body.dataset.live && JSON.parse(document.body.dataset.live);
const state = document.getElementById("live");
const others = new BroadcastChannel("cablestore-live");
let isReading = false, isStale = false;

async function refresh() {
  if (isReading) { isStale = true; return; }
  isReading = true;
  try {
    do {
      isStale = false;
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.statusText);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.body.dataset.sequence = next.body.dataset.sequence;
      replace(next.getElementById("main"));
    } while (isStale);
    state.textContent = "live";
  } catch {
    state.textContent = "not updated";
  } finally {
    isReading = false;
  }
}

// Keeps the focus, the open details and the scrolled tables of the page.
function replace(next) {
  const main = document.getElementById("main");
  const place = [...main.querySelectorAll("a, button, input, summary, .scroll")].indexOf(document.activeElement);
  const href = document.activeElement?.getAttribute("href");
  if (document.activeElement?.tagName === "INPUT" && place >= 0) return;
  const open = [...main.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...main.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  main.replaceChildren(...next.childNodes);
  improve(main);
  main.querySelectorAll("details").forEach((each, number) => { each.open = open[number] ?? each.open; });
  main.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolled[number] ?? 0; });
  if (place >= 0) {
    const all = [...main.querySelectorAll("a, button, input, summary, .scroll")];
    (all.find((each) => href && each.getAttribute("href") === href) ?? all[place])?.focus({ preventScroll: true });
  }
}

// A browser opens at most six connections to a host. So one page listens, and notifies the others of the same origin.

function hear(told) {
  if (told.state) state.textContent = told.state;
  const concerns = told.events?.some((each) => live === "" || each.channel === null || each.channel === live);
  if (concerns || told.isNode || told.last > Number(document.body.dataset.sequence)) refresh();
}

function listen() {
  let last = Number(document.body.dataset.sequence);
  const tell = (told) => { hear(told); others.postMessage(told); };
  const source = new EventSource("/events?after=" + last);
  source.addEventListener("open", () => tell({ state: "live" }));
  source.addEventListener("error", () => tell({ state: "not connected" }));
  source.addEventListener("node", () => tell({ isNode: true }));
  source.addEventListener("posts", (event) => {
    last = Number(event.lastEventId);
    tell({ events: JSON.parse(event.data) });
  });
  others.addEventListener("message", (event) => {
    if (event.data.isNew) others.postMessage({ state: state.textContent, last });
  });
  return new Promise(() => {}); // until the page is left
}

improve(document);
if (live !== undefined) {
  others.addEventListener("message", (event) => hear(event.data));
  others.postMessage({ isNew: true }); // the listening page answers with the last event
  if (navigator.locks) navigator.locks.request("cablestore-live", listen);
  else listen();
}
