"use strict";
// What a router's /fleet and /metrics mean, looked at again and again. No document and no network here;
// cli/v4_cli/facts.py is the same in Python, and a test holds the two together.

const TTFT = "v4serve_time_to_first_token_seconds_bucket";
const ITL = "v4serve_inter_token_latency_seconds_bucket";
const ROOM = "v4serve_requests_waiting_for_room"; // the only gauge
const METRICS = new Set([
  "v4serve_requests_total", "v4serve_prompt_tokens_total", "v4serve_cached_prompt_tokens_total",
  "v4serve_generated_tokens_total", "v4serve_retries_total", "v4serve_recomputations_total",
  "v4serve_migrations_total", TTFT, ITL, ROOM,
]);
const TRANSFERS = ["transfers", "transferred_bytes", "transfer_seconds"]; // of all revisions ever, from /fleet
const NO_FAULT = new Set(["ok", "client_gone"]);
const ROLES = ["prefill", "decode"];

// One look at a router: `at` in seconds, what /fleet told, the text of /metrics.
// Its values are sums by name and detail: the outcome of requests, the bound of a bucket.
function scrape(at, fleet, text) {
  const values = new Map();
  const add = (name, detail, value) => {
    if (!values.has(name)) values.set(name, new Map());
    values.get(name).set(detail, (values.get(name).get(detail) ?? 0) + value);
  };
  for (const line of text.split("\n")) {
    const sample = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!sample || !METRICS.has(sample[1])) continue;
    const detail = /(?:^|,)(?:le|outcome)="([^"]*)"/.exec(sample[2] ?? "");
    add(sample[1], detail ? detail[1] : "", Number(sample[3]));
  }
  for (const name of TRANSFERS) add(name, "", fleet.router[name]);
  return { at, fleet, values };
}

// The looks of the last seconds. A value that went down says that the router restarted: then what it counted since counts.
class Recent {
  constructor(seconds) {
    this.seconds = seconds;
    this.scrapes = [];
  }

  // What is known once this one is added.
  add(scrape) {
    const last = this.scrapes.at(-1);
    if (last && restarted(last, scrape)) this.scrapes = [{ ...last, values: new Map() }];
    this.scrapes.push(scrape);
    while (this.scrapes.length > 2 && this.scrapes[1].at <= scrape.at - this.seconds) this.scrapes.shift();
    return facts(this.scrapes[0], scrape);
  }
}

function restarted(before, after) {
  for (const [name, details] of after.values) {
    if (name === ROOM) continue;
    for (const [detail, value] of details) if (value < (before.values.get(name)?.get(detail) ?? 0)) return true;
  }
  return false;
}

// Null stands for what nothing was seen of.
function facts(before, after) {
  const { router, workers, revisions } = after.fleet;
  const seconds = after.at - before.at;
  const grown = (name) => {
    const details = [...(after.values.get(name) ?? [])];
    return details.map(([detail, value]) => [detail, value - (before.values.get(name)?.get(detail) ?? 0)]);
  };
  const sum = (pairs) => pairs.reduce((total, [, value]) => total + value, 0);
  const rate = (pairs) => over(sum(pairs), seconds);
  const total = (name) => sum([...(after.values.get(name) ?? [])]);
  const requests = grown("v4serve_requests_total");
  const bytes = grown("transferred_bytes");
  return {
    seconds,
    router: {
      version: router.version,
      served_name: router.served_name,
      ready: router.ready,
      requests: router.requests,
      waiting_for_room: total(ROOM),
    },
    requests: rate(requests),
    failed: rate(requests.filter(([outcome]) => !NO_FAULT.has(outcome))),
    prompt_tokens: rate(grown("v4serve_prompt_tokens_total")),
    generated_tokens: rate(grown("v4serve_generated_tokens_total")),
    hit_ratio: over(sum(grown("v4serve_cached_prompt_tokens_total")), sum(grown("v4serve_prompt_tokens_total"))),
    ttft: quantiles(grown(TTFT)),
    itl: quantiles(grown(ITL)),
    transfers: rate(grown("transfers")),
    transferred_bytes: rate(bytes),
    transfer_speed: over(sum(bytes), sum(grown("transfer_seconds"))),
    retries: total("v4serve_retries_total"),
    recomputations: total("v4serve_recomputations_total"),
    migrations: total("v4serve_migrations_total"),
    pools: ROLES.map((role) => pool(role, workers.filter((one) => one.role === role).map(worker))),
    revisions: revisions.map((one) => ({ name: one.revision, serves: one.probed, error: one.error })),
  };
}

function over(amount, by) {
  return by > 0 ? amount / by : null;
}

function quantiles(pairs) {
  const buckets = pairs.map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count]);
  buckets.sort((a, b) => a[0] - b[0]);
  return { p50: quantile(0.5, buckets), p90: quantile(0.9, buckets), p99: quantile(0.99, buckets) };
}

// Of cumulative counts by rising bounds: even within a bucket, as Prometheus takes it; beyond the last, its bound.
function quantile(share, buckets) {
  const rank = share * (buckets.at(-1)?.[1] ?? 0);
  let [lower, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (rank > 0 && count >= rank) {
      return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below);
    }
    [lower, below] = [bound, count];
  }
  return null;
}

function worker(one) {
  const load = one.load;
  const checkpoint = load.checkpoint_slots_used;
  return {
    name: one.pod || one.address,
    address: one.address,
    revision: one.revision,
    state: one.state,
    error: one.error,
    running: load.running,
    waiting: load.waiting,
    queued_tokens: load.queued_tokens,
    slots: load.slots_total,
    used: load.blocks_used,
    checkpoint,
    cached: load.slots_evictable - checkpoint,
    free: load.slots_free,
    tails: load.tails_total,
    tails_used: load.tails_used,
    leases: load.leases,
  };
}

function pool(role, workers) {
  const up = workers.filter((one) => one.state !== "down"); // the others' last word is old
  const sum = (name) => up.reduce((total, one) => total + one[name], 0);
  return {
    role,
    ready: workers.filter((one) => one.state === "ready").length,
    running: sum("running"),
    waiting: sum("waiting"),
    queued_tokens: sum("queued_tokens"),
    leases: sum("leases"),
    workers: workers.sort((a, b) => (a.name < b.name ? -1 : Number(a.name > b.name))),
  };
}
