"use strict";
// Asks its router for its facts and draws them. All text enters the document as text.

const EVERY_SECONDS = 1;
const PATIENCE_SECONDS = 5;
const KEPT = 300; // points of a line: 5 minutes
const LEAST = 60; // points that a line has room for from the beginning
const SEEN = 0.75; // percent of a bar that a part has which is not empty
const NONE = "–";

const ROLES = ["prefill", "decode"];
const STATES = { ready: "good", unproven: "warn", "not ready": "warn", draining: "warn", down: "bad" };
const TILES = [
  ["Requests", (f) => f.requests, each("/s"), (f) => {
    const { requests, waiting_for_room } = f.router;
    return `${number(requests)} running` + (waiting_for_room ? `, ${number(waiting_for_room)} waiting for room` : "");
  }, (f) => (f.failed ? `, ${each("/s")(f.failed)} failed` : "")],
  ["Prompt tokens", (f) => f.prompt_tokens, each(" tok/s"), (f) => `${number(f.pools[0].queued_tokens)} queued on prefill`],
  ["Prefix hits", (f) => f.hit_ratio, percent, () => "of prompt tokens"],
  ["Transfers", (f) => f.transferred_bytes, size("/s"), (f) =>
    `${each("/s")(f.transfers)} at ${size("/s")(f.transfer_speed)} each, ${count(f.pools[0].leases, "lease")} held`],
  ["Generated tokens", (f) => f.generated_tokens, each(" tok/s"), (f) => `${count(f.pools[1].running, "sequence")} on decode`],
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

function each(unit) {
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

function over(amount, by) {
  return by > 0 ? amount / by : null;
}

function find(id) {
  return document.getElementById(id);
}

// An element of a kind and class with children, which are elements or texts.
function make(kind, name = "", ...children) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

function say(element, text, name) {
  if (element.textContent !== text) element.textContent = text;
  if (name !== undefined && element.className !== name) element.className = name;
}

class Tile {
  constructor([title, value, format, more, trouble = () => ""]) {
    Object.assign(this, { value, format, more, trouble, points: [] });
    this.shown = make("p", "value");
    this.below = make("span");
    this.bad = make("span", "bad");
    this.line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    this.picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.picture.setAttribute("preserveAspectRatio", "none");
    this.picture.setAttribute("aria-hidden", "true");
    this.picture.append(this.line);
    this.root = make("div", "tile", make("h2", "", title), this.shown, make("p", "more", this.below, this.bad), this.picture);
  }

  draw(facts) {
    const value = this.value(facts);
    this.points.push(value);
    if (this.points.length > KEPT) this.points.shift();
    say(this.shown, this.format(value));
    say(this.below, this.more(facts));
    say(this.bad, this.trouble(facts));
    this.picture.setAttribute("viewBox", `0 0 ${Math.max(LEAST, this.points.length) - 1} 40`);
    this.line.setAttribute("d", path(this.points));
  }
}

// The newest point at the right edge; a gap where nothing is known.
function path(points) {
  const most = Math.max(...points, Number.MIN_VALUE);
  const start = Math.max(LEAST - points.length, 0);
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
    this.name = make("h3");
    this.revision = make("span", "quiet");
    this.state = make("p");
    this.parts = ["used", "checkpoint", "cached"].map((name) => make("div", name));
    this.bar = make("div", "bar", ...this.parts);
    this.bar.setAttribute("role", "img");
    this.figures = ["running", "waiting", "queued tokens", "slots used", "live tails", "leases held"].map((name) => {
      const figure = make("dd");
      return [make("div", "", make("dt", "", name), figure), figure];
    });
    this.numbers = make("dl", "", ...this.figures.map(([both]) => both));
    this.error = make("p", "bad");
    const head = make("header", "", this.name, this.revision, this.state);
    this.root = make("li", "worker", head, this.bar, this.numbers, this.error);
  }

  draw(worker) {
    say(this.name, worker.name);
    this.name.title = worker.address;
    say(this.revision, worker.revision);
    say(this.state, worker.state, `state ${STATES[worker.state] ?? "warn"}`);
    this.bar.hidden = this.numbers.hidden = worker.state === "down";
    const { used, checkpoint, cached, free } = worker;
    for (const part of this.parts) {
      const share = 100 * (over(worker[part.className], worker.slots) ?? 0);
      part.style.width = `${share && Math.max(SEEN, share)}%`;
    }
    this.bar.setAttribute("aria-label", `used ${used}, checkpoint ${checkpoint}, cached ${cached}, free ${free} block slots`);
    const slots = `${number(used)} of ${number(worker.slots)}`;
    const tails = `${number(worker.tails_used)} of ${number(worker.tails)}`;
    const texts = [number(worker.running), number(worker.waiting), number(worker.queued_tokens), slots, tails, number(worker.leases)];
    texts.forEach((text, i) => say(this.figures[i][1], text));
    say(this.error, worker.error);
  }
}

class PoolSection {
  constructor() {
    this.cards = new Map();
    this.title = make("h2");
    this.sum = make("p", "quiet");
    this.list = make("ul", "workers");
    this.root = make("div", "pool", make("header", "", this.title, this.sum), this.list);
  }

  draw(pool) {
    say(this.title, pool.role);
    const ready = `${pool.ready} of ${pool.workers.length} ready`;
    say(this.sum, `${ready}, ${number(pool.running)} running, ${number(pool.waiting)} waiting, ${count(pool.queued_tokens, "token")} queued`);
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
    this.heard = new Date(); // of the router, from which this page just came
    find("tiles").append(...this.tiles.map((tile) => tile.root));
    find("pools").append(...this.pools.map((pool) => pool.root));
  }

  async look() {
    try {
      this.draw(await ask());
    } catch (error) {
      this.miss(error);
    }
    setTimeout(() => this.look(), 1000 * EVERY_SECONDS);
  }

  // What is shown is old.
  miss(error) {
    say(find("router"), "no answer", "state bad");
    say(find("banner"), `No answer from the router since ${this.heard.toLocaleTimeString()}: ${error.message}. Asking again every second.`);
    find("banner").hidden = false;
    document.body.className = "stale";
  }

  draw(facts) {
    const { router } = facts;
    document.title = `${router.served_name} – v4serve`;
    say(find("model"), router.served_name);
    say(find("router"), router.ready ? "ready" : "not ready", `state ${router.ready ? "good" : "bad"}`);
    this.heard = new Date();
    say(find("now"), this.heard.toLocaleTimeString());
    find("banner").hidden = true;
    document.body.className = "";
    for (const tile of this.tiles) tile.draw(facts);
    this.pools.forEach((pool, i) => pool.draw(facts.pools[i]));
    this.revisions(facts.revisions.filter((one) => one.name || (!one.serves && one.error)));
    say(find("foot"), `v4serve ${router.version}. TTFT: time to first token, ITL: inter-token latency. Rates and quantiles: last ${number(facts.seconds || null)} s of this router; lines: up to ` +
      `${(KEPT * EVERY_SECONDS) / 60} min; retries: since the router began.`);
  }

  revisions(revisions) {
    const rows = revisions.map((one) => {
      const state = make("span", `state ${one.serves ? "good" : "warn"}`, one.serves ? "serves" : "does not serve");
      return make("div", "revision", make("span", "", `revision ${one.name || NONE}`), state, make("span", "bad", one.serves ? "" : one.error));
    });
    find("revisions").replaceChildren(...rows);
  }
}

async function ask() {
  const answer = await fetch("facts", { cache: "no-store", signal: AbortSignal.timeout(1000 * PATIENCE_SECONDS) });
  if (!answer.ok) throw new Error(`/facts answered ${answer.status}`);
  return answer.json();
}

new Page().look();
