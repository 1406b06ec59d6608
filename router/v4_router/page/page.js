"use strict";
// Fetches the router's /facts every second and draws them. All text is inserted as text, never as markup.

const EVERY_SECONDS = 1;
const TIMEOUT_SECONDS = 5;
const MAX_POINTS = 300; // of a line: 5 minutes
const MIN_POINTS = 60; // width of the time axis, in points, while a line has fewer
const MIN_SHARE = 0.75; // least width, in percent of the bar, of a part that is not empty
const NONE = "–"; // shown for an unknown value

const ROLES = ["prefill", "decode"];
const STATES = { ready: "good", unproven: "warn", "not ready": "warn", draining: "warn", down: "bad" };
const TILES = [
  ["Requests", (f) => f.requests, perSecond("/s"), (f) => {
    const { requests, waiting_for_room } = f.router;
    return `${number(requests)} running` + (waiting_for_room ? `, ${number(waiting_for_room)} waiting for room` : "");
  }, (f) => (f.failed ? `, ${perSecond("/s")(f.failed)} failed` : "")],
  ["Prompt tokens", (f) => f.prompt_tokens, perSecond(" tok/s"), (f) => `${number(f.pools[0].queued_tokens)} queued on prefill`],
  ["Prefix hits", (f) => f.hit_ratio, percent, () => "of prompt tokens"],
  ["Transfers", (f) => f.transferred_bytes, size("/s"), (f) =>
    `${perSecond("/s")(f.transfers)} at ${size("/s")(f.transfer_speed)} each, ${count(f.pools[0].leases, "lease")} held`],
  ["Generated tokens", (f) => f.generated_tokens, perSecond(" tok/s"), (f) => `${count(f.pools[1].running, "sequence")} on decode`],
  ["TTFT, p50", (f) => f.ttft.p50, time, (f) => `p90 ${time(f.ttft.p90)}, p99 ${time(f.ttft.p99)}`],
  ["ITL, p50", (f) => f.itl.p50, time, (f) => `p90 ${time(f.itl.p90)}, p99 ${time(f.itl.p99)}`],
  ["Retries", (f) => f.retries, number, (f) =>
    `${number(f.recomputations)} recomputed, ${number(f.migrations)} migrated`],
];

function number(value) {
  return value === null ? NONE : Math.round(value).toLocaleString("en");
}

function count(value, one) {
  return `${number(value)} ${one}${Math.round(value) === 1 ? "" : "s"}`;
}

function perSecond(unit) {
  return (value) => (value === null ? NONE : (value < 10 ? value.toFixed(1) : number(value)) + unit);
}

function percent(value) {
  return value === null ? NONE : `${Math.round(100 * value)} %`;
}

function time(seconds) {
  if (seconds === null) return NONE;
  return seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
}

function size(unit) {
  return (bytes) => {
    if (bytes === null) return NONE;
    const step = bytes >= 1e9 ? 3 : bytes >= 1e6 ? 2 : bytes >= 1e3 ? 1 : 0;
    return `${(bytes / 1000 ** step).toFixed(step ? 1 : 0)} ${["B", "kB", "MB", "GB"][step]}${unit}`;
  };
}

function ratio(amount, by) {
  return by > 0 ? amount / by : null;
}

function find(id) {
  return document.getElementById(id);
}

// Returns a new element with a class and with children, which are elements or strings.
function create(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

// Sets an element's text and class; leaves the DOM alone if they are unchanged.
function update(element, text, name) {
  if (element.textContent !== text) element.textContent = text;
  if (name !== undefined && element.className !== name) element.className = name;
}

class Tile {
  constructor([title, value, format, details, problem = () => ""]) {
    Object.assign(this, { value, format, details, problem, points: [] });
    this.figure = create("p", "value");
    this.below = create("span");
    this.bad = create("span", "bad");
    this.line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    this.chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.chart.setAttribute("preserveAspectRatio", "none");
    this.chart.setAttribute("aria-hidden", "true");
    this.chart.append(this.line);
    this.root = create("div", "tile", create("h2", "", title), this.figure, create("p", "more", this.below, this.bad), this.chart);
  }

  draw(facts) {
    const value = this.value(facts);
    this.points.push(value);
    if (this.points.length > MAX_POINTS) this.points.shift();
    update(this.figure, this.format(value));
    update(this.below, this.details(facts));
    update(this.bad, this.problem(facts));
    this.chart.setAttribute("viewBox", `0 0 ${Math.max(MIN_POINTS, this.points.length) - 1} 40`);
    this.line.setAttribute("d", path(this.points));
  }
}

// Returns the SVG path of a line: the newest point is at the right edge, and unknown values are gaps.
function path(points) {
  const most = Math.max(...points, Number.MIN_VALUE);
  const start = Math.max(MIN_POINTS - points.length, 0);
  return points
    .map((value, i) => {
      if (value === null) return "";
      const begins = i === 0 || points[i - 1] === null;
      return `${begins ? "M" : "L"}${start + i} ${(38 - (36 * value) / most).toFixed(1)}`;
    })
    .join("");
}

class WorkerCard {
  constructor() {
    this.name = create("h3");
    this.revision = create("span", "quiet");
    this.state = create("p");
    this.parts = ["used", "checkpoint", "cached"].map((name) => create("div", name));
    this.bar = create("div", "bar", ...this.parts);
    this.bar.setAttribute("role", "img");
    this.figures = ["running", "waiting", "queued tokens", "slots used", "live tails", "leases held"].map((name) => {
      const figure = create("dd");
      return [create("div", "", create("dt", "", name), figure), figure];
    });
    this.numbers = create("dl", "", ...this.figures.map(([both]) => both));
    this.error = create("p", "bad");
    const head = create("header", "", this.name, this.revision, this.state);
    this.root = create("li", "worker", head, this.bar, this.numbers, this.error);
  }

  draw(worker) {
    update(this.name, worker.name);
    this.name.title = worker.address;
    update(this.revision, worker.revision);
    update(this.state, worker.state, `state ${STATES[worker.state] ?? "warn"}`);
    this.bar.hidden = this.numbers.hidden = worker.state === "down";
    const { used, checkpoint, cached, free } = worker;
    for (const part of this.parts) {
      const share = 100 * (ratio(worker[part.className], worker.slots) ?? 0);
      part.style.width = `${share && Math.max(MIN_SHARE, share)}%`;
    }
    this.bar.setAttribute("aria-label", `used ${used}, checkpoint ${checkpoint}, cached ${cached}, free ${free} block slots`);
    const slots = `${number(used)} of ${number(worker.slots)}`;
    const tails = `${number(worker.tails_used)} of ${number(worker.tails)}`;
    const texts = [number(worker.running), number(worker.waiting), number(worker.queued_tokens), slots, tails, number(worker.leases)];
    texts.forEach((text, i) => update(this.figures[i][1], text));
    update(this.error, worker.error);
  }
}

class PoolSection {
  constructor() {
    this.cards = new Map();
    this.title = create("h2");
    this.sum = create("p", "quiet");
    this.list = create("ul", "workers");
    this.root = create("div", "pool", create("header", "", this.title, this.sum), this.list);
  }

  draw(pool) {
    update(this.title, pool.role);
    const ready = `${pool.ready} of ${pool.workers.length} ready`;
    update(this.sum, `${ready}, ${number(pool.running)} running, ${number(pool.waiting)} waiting, ${count(pool.queued_tokens, "token")} queued`);
    this.root.hidden = !pool.workers.length;
    const before = [...this.cards.keys()].join();
    const cards = pool.workers.map((worker) => [worker.address, this.cards.get(worker.address) ?? new WorkerCard()]);
    this.cards = new Map(cards);
    pool.workers.forEach((worker) => this.cards.get(worker.address).draw(worker));
    if ([...this.cards.keys()].join() !== before) this.list.replaceChildren(...cards.map(([, card]) => card.root));
  }
}

class Page {
  constructor() {
    this.tiles = TILES.map((tile) => new Tile(tile));
    this.pools = ROLES.map(() => new PoolSection());
    this.answered = new Date(); // time of the router's last answer; at first, of the answer with this page
    find("tiles").append(...this.tiles.map((tile) => tile.root));
    find("pools").append(...this.pools.map((pool) => pool.root));
  }

  async refresh() {
    try {
      this.draw(await fetchFacts());
    } catch (error) {
      this.showStale(error);
    }
    setTimeout(() => this.refresh(), 1000 * EVERY_SECONDS);
  }

  // Marks the figures as stale after a request for them has failed.
  showStale(error) {
    update(find("router"), "no answer", "state bad");
    update(find("banner"), `No answer from the router since ${this.answered.toLocaleTimeString()}: ${error.message}. Retrying every second.`);
    find("banner").hidden = false;
    document.body.className = "stale";
  }

  draw(facts) {
    const { router } = facts;
    document.title = `${router.served_name} – v4serve`;
    update(find("model"), router.served_name);
    update(find("router"), router.ready ? "ready" : "not ready", `state ${router.ready ? "good" : "bad"}`);
    this.answered = new Date();
    update(find("now"), this.answered.toLocaleTimeString());
    find("banner").hidden = true;
    document.body.className = "";
    for (const tile of this.tiles) tile.draw(facts);
    this.pools.forEach((pool, i) => pool.draw(facts.pools[i]));
    this.revisions(facts.revisions.filter((one) => one.name || (!one.serves && one.error)));
    update(find("foot"), `v4serve ${router.version}. TTFT: time to first token. ITL: inter-token latency. Rates and quantiles are of this router's last ${number(facts.seconds || null)} s, lines of up to ` +
      `${(MAX_POINTS * EVERY_SECONDS) / 60} min. Retries are counted since the router started.`);
  }

  revisions(revisions) {
    const rows = revisions.map((one) => {
      const state = create("span", `state ${one.serves ? "good" : "warn"}`, one.serves ? "serves" : "does not serve");
      return create("div", "revision", create("span", "", `revision ${one.name || NONE}`), state, create("span", "bad", one.serves ? "" : one.error));
    });
    find("revisions").replaceChildren(...rows);
  }
}

async function fetchFacts() {
  const answer = await fetch("facts", { cache: "no-store", signal: AbortSignal.timeout(1000 * TIMEOUT_SECONDS) });
  if (!answer.ok) throw new Error(`/facts answered ${answer.status}`);
  return answer.json();
}

new Page().refresh();
