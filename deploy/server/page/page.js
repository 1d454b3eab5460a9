// The page of the embedding server: asks for vectors, computes cosines, draws a ranking and a heat map per model.

const LIMIT = 200; // sentences
const at = (id) => document.getElementById(id);
const [form, sentences, query, model, other, key, compare] =
  ["form", "sentences", "query", "model", "other", "key", "compare"].map(at);
let info = {}; // what GET /info says
let models = []; // what GET /v1/models lists
let newest = null; // AbortController of the newest comparison

class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// ---- the server ----------------------------------------------------------------------------------------------------

async function request(address, options = {}) {
  const headers = { ...options.headers };
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  let response;
  try {
    response = await fetch(address, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ServerError("The server does not answer.", 0);
  }
  if (!response.ok) throw new ServerError(await reason(response), response.status);
  return response;
}

async function reason(response) {
  const said = await response.json().catch(() => null);
  const wait = response.headers.get("retry-after");
  const message = said?.error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  return wait ? `${message.replace(/\.?$/, ".")} Try again in ${wait} s.` : message;
}

async function loadModels() {
  try {
    models = [];
    for (let more = true, after = ""; more; ) {
      const page = await (await request(`v1/models?after=${encodeURIComponent(after)}`)).json();
      models.push(...page.data);
      [more, after] = [page.has_more, page.last_id];
    }
  } catch (error) {
    if (error.status !== 401) throw error;
    at("key-field").hidden = false;
    models = (info.models ?? []).map((id) => ({ id, dimension: info.dimension, max_length: info.max_input_length }));
  }
  fill(model, models.map(({ id }) => [id, id]));
  fill(other, [["", "none"], ...models.map(({ id }) => [id, id])]);
  at("models").hidden = models.length < 2;
  showChosen();
  if (!models.length) throw new ServerError("The server has no model.", 0);
}

/** Returns unit vectors, chosen domains and the number of truncated texts. */
async function embed(name, texts, signal) {
  const found = { name, vectors: [], domains: [], truncated: 0 };
  const batch = info.max_client_batch_size || texts.length;
  for (let start = 0; start < texts.length; start += batch) {
    const body = { model: name, input: texts.slice(start, start + batch), encoding_format: "base64" };
    const headers = { "Content-Type": "application/json" };
    const response = await request("v1/embeddings", { method: "POST", headers, body: JSON.stringify(body), signal });
    found.truncated += Number(response.headers.get("x-truncated") ?? 0);
    for (const item of (await response.json()).data) {
      found.vectors[start + item.index] = unit(decode(item.embedding));
      found.domains[start + item.index] = item.domain;
    }
  }
  return found;
}

// ---- numbers -------------------------------------------------------------------------------------------------------

function decode(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0)).buffer);
}

function unit(vector) {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}

function cosine(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function written(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** Returns rows and their cosines with the query, nearest first. */
function ranked(vectors, wanted) {
  const scored = vectors.map((vector, row) => ({ row, score: cosine(vector, wanted) }));
  return scored.sort((a, b) => b.score - a.score);
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, label]) => make("option", { value }, label)));
  if (options.some(([value]) => value === before)) select.value = before;
}

function chip(domain) {
  return domain ? [" ", make("span", { className: "domain", title: "domain chosen for this text" }, domain)] : [];
}

function percent(element, value) {
  element.style.setProperty("--v", `${(100 * Math.min(Math.max(value, 0), 1)).toFixed(1)}%`);
  return element;
}

function moved(places) {
  if (!places) return make("span", { className: "moved" });
  const way = places > 0 ? "up" : "down";
  const said = `${way} by ${Math.abs(places)}`;
  const sign = make("span", { ariaHidden: "true" }, `${places > 0 ? "▲" : "▼"}${Math.abs(places)}`);
  const title = `${said}, compared with the first model`;
  return make("span", { className: `moved ${way}`, title }, sign, make("span", { className: "unseen" }, said));
}

/** Draws a ranking; `first` is that of the first model, to mark what moved. */
function drawRanking(found, texts, ranking, first) {
  const places = new Map(first?.map(({ row }, place) => [row, place]));
  const items = ranking.map(({ row, score }, place) =>
    make("li", {},
      make("span", { className: "place" }, String(place + 1)),
      make("span", { className: "text" }, texts[row], ...chip(found.domains[row])),
      moved(first ? places.get(row) - place : 0),
      make("span", { className: "score" }, written(score, 3)),
      percent(make("span", { className: "bar" }), score)));
  const title = make("h3", {}, found.name, ...chip(found.domains[texts.length]));
  return make("div", { className: "side" }, title, make("ol", {}, ...items));
}

function heading(scope, row, texts, domain) {
  const label = make("span", {}, make("b", {}, String(row + 1)), " ", texts[row]);
  return make("th", { scope, title: texts[row] }, label, ...chip(domain));
}

function drawHeatMap(found, texts) {
  const heads = texts.map((_, row) => heading("col", row, texts));
  const rows = texts.map((_, row) => {
    const cells = texts.map((_, column) => {
      const value = cosine(found.vectors[row], found.vectors[column]);
      const cell = make("td", { className: value < 0 ? "negative" : "" }, written(value, 2));
      return percent(cell, Math.abs(value));
    });
    return make("tr", {}, heading("row", row, texts, found.domains[row]), ...cells);
  });
  const top = make("thead", {}, make("tr", {}, make("td", { className: "corner" }), ...heads));
  const table = make("table", {}, top, make("tbody", {}, ...rows));
  table.addEventListener("pointerover", ({ target }) => {
    if (!target.matches("tbody td")) return;
    target.title = `${texts[target.parentNode.rowIndex - 1]}\n${texts[target.cellIndex - 1]}`;
  });
  const box = { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Cosines, ${found.name}` };
  return make("div", { className: "side" }, make("h3", {}, found.name), make("div", box, table));
}

function show(section, drawn) {
  const sides = section.querySelector(".sides");
  sides.classList.toggle("two", drawn.length > 1);
  sides.replaceChildren(...drawn);
  section.hidden = !drawn.length;
}

function showResults(sides, texts, wanted) {
  const rank = ({ vectors }) => ranked(vectors.slice(0, texts.length), vectors[texts.length]);
  const rankings = wanted ? sides.map(rank) : [];
  show(at("ranking"), rankings.map((ranking, i) => drawRanking(sides[i], texts, ranking, i ? rankings[0] : null)));
  show(at("similarities"), sides.map((found) => drawHeatMap(found, texts)));
  at("sections").classList.toggle("beside", sides.length === 1 && Boolean(wanted) && texts.length <= 10);
  at("asked").textContent = `Cosine of each sentence with “${wanted}”`;
  at("notes").textContent = sides.flatMap(notes).join(" ");
  at("results").hidden = false;
}

/** Returns what a reader of a model's numbers should know. */
function notes({ name, truncated, domains }) {
  const said = [];
  const longest = models.find(({ id }) => id === name)?.max_length;
  const limit = longest ? ` at ${longest} tokens` : "";
  if (truncated) said.push(`${name}: ${truncated} ${truncated > 1 ? "texts were" : "text was"} cut${limit}.`);
  if (new Set(domains).size > 1) said.push(`${name}: cosines between texts of different domains mean little.`);
  return said;
}

// ---- the form ------------------------------------------------------------------------------------------------------

function lines() {
  return sentences.value.split("\n").map((line) => line.trim()).filter(Boolean);
}

function showCount() {
  at("sentences-hint").textContent = `one per line · ${lines().length} of ${LIMIT}`;
}

function showChosen() {
  for (const option of other.options) option.disabled = option.value !== "" && option.value === model.value;
  if (other.selectedOptions[0]?.disabled) other.value = "";
  const { id, dimension, max_length: longest } = models.find((one) => one.id === model.value) ?? {};
  const facts = [id, dimension && `${dimension} dimensions`, longest && `at most ${longest} tokens`];
  at("facts").textContent = [...facts, info.version && `version ${info.version}`].filter(Boolean).join(" · ");
}

function say(status, error = "") {
  at("status").textContent = status;
  at("error").textContent = error;
}

function setBusy(busy) {
  const focused = document.activeElement === compare || document.activeElement === document.body;
  compare.disabled = busy;
  compare.textContent = busy ? "Comparing…" : "Compare";
  at("results").classList.toggle("old", busy);
  if (!busy && focused) compare.focus({ preventScroll: true });
}

/** Returns why the form cannot be sent, or an empty string. */
function obstacle(texts) {
  if (!texts.length) return "Paste at least one sentence.";
  return texts.length > LIMIT ? `${texts.length} sentences; this page compares at most ${LIMIT}.` : "";
}

async function run() {
  const [texts, wanted] = [lines(), query.value.trim()];
  newest?.abort();
  const mine = (newest = new AbortController());
  const problem = obstacle(texts);
  setBusy(!problem);
  if (problem) return say("", problem);
  say(`Comparing ${texts.length} ${texts.length > 1 ? "sentences" : "sentence"}…`);
  const started = performance.now();
  try {
    if (!models.length) await loadModels();
    const names = [model.value, other.value].filter(Boolean);
    const asked = wanted ? [...texts, wanted] : texts;
    const sides = await Promise.all(names.map((name) => embed(name, asked, mine.signal)));
    if (mine !== newest) return;
    const seconds = ((performance.now() - started) / 1000).toFixed(2);
    showResults(sides, texts, wanted);
    say(`Compared ${texts.length} ${texts.length > 1 ? "sentences" : "sentence"} in ${seconds} s.`);
  } catch (error) {
    if (mine === newest) await fail(error);
  } finally {
    mine.abort(); // the other model's request, if one failed
    if (mine === newest) setBusy(false);
  }
}

async function fail(error) {
  say("", error.message);
  if (error.status === 404) await loadModels().catch(() => {}); // a bank's domains change while it is served
  if (error.status !== 401) return;
  at("key-field").hidden = false;
  key.focus();
}

/** Sends on Enter in a field, on Ctrl+Enter anywhere. */
function sendOn(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  if (!event.ctrlKey && !event.metaKey && !event.target.matches("input")) return;
  event.preventDefault();
  form.requestSubmit(); // also while the button is disabled: the newer question wins
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
form.addEventListener("keydown", sendOn);
sentences.addEventListener("input", showCount);
model.addEventListener("change", showChosen);
showCount();
try {
  info = await (await request("info")).json();
  at("report").hidden = !info.report;
  if (info.report) at("report").href = info.report;
  if (info.keys_required) at("key-field").hidden = false;
  await loadModels();
} catch (error) {
  say("", error.message);
}
