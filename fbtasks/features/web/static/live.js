// Fetches the same page again and again, and changes what is different in it. All works without this file.
const one = (where) => document.querySelector(where);
const kept = { get: (name, or) => { try { return localStorage.getItem("fbtasks." + name) ?? or; } catch { return or; } },
  set: (name, value) => { try { localStorage.setItem("fbtasks." + name, value); } catch { /* not allowed here */ } } };
const two = (number) => String(number).padStart(2, "0");
let etag = "", chord = 0, before = "";

function showTimes() {
  if (kept.get("zone", "local") !== "local") return;
  for (const each of document.querySelectorAll("time")) {
    const t = new Date(each.dateTime), day = `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
    const whole = `${day} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}.${each.dateTime.slice(20, 23)}`;
    const [from, to] = { 5: [11, 16], 8: [11, 19], 16: [0, 16], 23: [0, 23] }[each.textContent.length]; // as the server has cut it
    each.textContent = whole.slice(from, to);
  }
  for (const each of document.querySelectorAll("title[data-at]")) { // tips of charts: their first line is the time
    const t = new Date(1000 * each.dataset.at);
    each.textContent = `${two(t.getHours())}:${two(t.getMinutes())}${each.textContent.slice(each.textContent.indexOf("\n"))}`;
  }
}

const types = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName) || getSelection()?.toString();
const rests = () => document.hidden || types() || one("dialog[open]") || one("form.ask, [name=id]:checked");

async function look() {
  const seconds = Number(kept.get("every", "2"));
  if (seconds && !rests()) {
    try {
      const headers = etag ? { "If-None-Match": etag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(15000) });
      const text = await answer.text();
      if (answer.status === 200 && !answer.redirected && !rests()) {
        const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
        const callbacks = { beforeAttributeUpdated: (name, node) => name !== { DETAILS: "open", INPUT: "value" }[node.tagName] };
        if (main) Idiomorph.morph(one("main"), main, { callbacks });
        etag = answer.headers.get("ETag") ?? "";
        showTimes();
      }
      one("#stale").hidden = answer.ok || answer.status === 304;
    } catch { one("#stale").hidden = false; }
  }
  setTimeout(look, 1000 * (seconds || 1));
}

function set(name, value) {
  kept.set(name, value);
  one("#" + name).value = value;
  if (name === "zone") location.reload();
}

for (const [name, or] of [["every", "2"], ["zone", "local"]]) {
  one("#" + name).value = kept.get(name, or);
  one("#" + name).onchange = (event) => { set(name, event.target.value); event.target.blur(); };
}
const known = one("#known"), words = [...(known?.options ?? [])].map((each) => each.value);
document.addEventListener("input", ({ target }) => {
  if (target.id === "page") for (const each of document.querySelectorAll("[name=id]")) each.checked = target.checked;
  if (target.name === "id") one("#page").checked = !one("[name=id]:not(:checked)");
  // Browsers compare the whole line with each option: it gets what stands before the last word.
  if (!known || target.list !== known || before === (before = target.value.replace(/\S*$/, ""))) return;
  const others = words.filter((each) => !before.includes(each.replace(/:.*/, ":")));
  known.replaceChildren(...others.map((each) => new Option("", before + each)));
});
one("#keys").onclick = () => one("#help").showModal();
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || types()) return;
  const page = { o: "Overview", q: "Queues", t: "Tasks", w: "Workers", f: "Failures" }[event.key];
  if (page && Date.now() - chord < 1500) [...document.querySelectorAll("nav a")].find((a) => a.text === page)?.click();
  else if (event.key === "/") { event.preventDefault(); (one("#q") ?? one(".find input"))?.select(); }
  else if (event.key === "p") set("every", kept.get("every", "2") === "0" ? "2" : "0");
  else if (event.key === "?") one("#help").showModal();
  chord = event.key === "g" ? Date.now() : 0;
});
one(".live").hidden = false;
if (location.search.includes("seal=")) { // what was said is shown once
  const url = new URL(location.href);
  url.searchParams.delete("said");
  url.searchParams.delete("seal");
  history.replaceState(null, "", url);
}
showTimes();
setTimeout(look, 2000);
