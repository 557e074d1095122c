// The rendering written plainly in JavaScript, to compare with. It reads a snapshot, warms up, and says how long it takes.
//
//   node plain.mjs SNAPSHOT ROUNDS PREFER OUTPUT-DIRECTORY    times, and the documents as files
//   node plain.mjs SNAPSHOT memory PREFER PREFER              memory with two formats in three orders held

import { readFileSync, writeFileSync } from "node:fs";

const DENIED = ["/v1/storage", "/v1/ingress/routes"];
const LABEL = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/;
const byCodeUnit = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function generic(snapshot, prefer) {
  const nodes = snapshot.nodes.filter((node) => !node.draining).sort((a, b) => byCodeUnit(a.id, b.id));
  const first = (list) =>
    prefer === undefined
      ? list
      : [...list.filter((u) => u.node === prefer), ...list.filter((u) => u.node !== prefer)];
  const applications = [...snapshot.applications].sort((a, b) => byCodeUnit(a.name, b.name));
  const routable = new Set(applications.filter((a) => a.routable).map((a) => a.name));
  const upstreams = new Map();
  for (const node of nodes) {
    for (const serving of node.serving) {
      if (serving.state !== "ready" || !routable.has(serving.application)) continue;
      const list = upstreams.get(serving.application) ?? [];
      list.push({ node: node.id, address: `${node.address}:${serving.port}` });
      upstreams.set(serving.application, list);
    }
  }
  const routes = new Map();
  const add = (host, application) => {
    const list = upstreams.get(application);
    if (list && !routes.has(host)) routes.set(host, { host, application, upstreams: first(list) });
  };
  for (const { name } of applications) {
    for (const domain of snapshot.platformDomains) add(`${name}.${domain}`, name);
  }
  for (const { name, domains } of applications) for (const host of domains) add(host, name);
  for (const { name: holder, wildcardDomains } of applications) {
    if (wildcardDomains.length === 0) continue;
    for (const { name } of applications) {
      if (!name.startsWith(`${holder}-`) || !LABEL.test(name.slice(holder.length + 1))) continue;
      for (const base of wildcardDomains) add(`${name.slice(holder.length + 1)}.${base}`, name);
    }
  }
  for (const { name, wildcardDomains } of applications) for (const base of wildcardDomains) add(`*.${base}`, name);
  const document = { v: 1, routes: [...routes.values()].sort((a, b) => byCodeUnit(a.host, b.host)) };
  const claimed = new Set(applications.flatMap((a) => a.domains));
  const hosts = snapshot.platformDomains.filter((d) => !routes.has(d) && !claimed.has(d)).sort(byCodeUnit);
  const api = nodes.filter((node) => node.apiPublic).map((node) => ({ node: node.id, address: node.api }));
  if (snapshot.apiPublic && hosts.length > 0 && api.length > 0) {
    document.api = { hosts, upstreams: first(api), denied: DENIED };
  }
  return document;
}

function traefik(document, entryPoints, prefer) {
  const routers = {};
  const services = {};
  const balancer = (list, healthCheck) => ({
    loadBalancer: { servers: list.map((u) => ({ url: `http://${u.address}` })), healthCheck },
  });
  const service = (key, list, healthCheck) => {
    const local = list.filter((u) => u.node === prefer);
    const peers = list.filter((u) => u.node !== prefer);
    if (local.length === 0 || peers.length === 0) {
      services[key] = balancer(list, healthCheck);
      return;
    }
    services[key] = { failover: { service: `${key}_local`, fallback: `${key}_peers` } };
    services[`${key}_local`] = balancer(local, healthCheck);
    services[`${key}_peers`] = balancer(peers, healthCheck);
  };
  const health = (path, hostname) => ({ path, interval: "10s", timeout: "3s", ...(hostname && { hostname }) });
  for (const { host, upstreams } of document.routes) {
    const base = host.startsWith("*.") ? host.slice(2) : undefined;
    const key = base ? `scafo_wild_${base}` : `scafo_${host}`;
    const rule = base ? `HostRegexp(\`^[^.]+\\.${base.replaceAll(".", "\\.")}$\`)` : `Host(\`${host}\`)`;
    routers[key] = { rule, service: key, entryPoints, middlewares: ["scafo_retry"], ...(base && { priority: 1 }) };
    service(key, upstreams, health("/.well-known/celld/health", base ?? host));
  }
  for (const domain of document.api?.hosts ?? []) {
    const rules = document.api.denied.flatMap((p) => [`Path(\`${p}\`)`, `PathPrefix(\`${p}/\`)`]);
    const key = `scafo_api_${domain}`;
    routers[`scafo_apideny_${domain}`] = {
      rule: `Host(\`${domain}\`) && (${rules.join(" || ")})`, service: "noop@internal", entryPoints, priority: 3,
    };
    routers[key] = {
      rule: `Host(\`${domain}\`) && !${rules.join(" && !")}`,
      service: key, entryPoints, middlewares: ["scafo_retry"], priority: 2,
    };
    service(key, document.api.upstreams, health("/.well-known/scafo/health"));
  }
  if (Object.keys(routers).length === 0) return {};
  return { http: { routers, services, middlewares: { scafo_retry: { retry: { attempts: 3 } } } } };
}

const [path, what, prefer, last] = process.argv.slice(2);
const text = readFileSync(path, "utf8");
const snapshot = JSON.parse(text);
const renderGeneric = (order) => JSON.stringify(generic(snapshot, order));
const renderTraefik = (order) => JSON.stringify(traefik(generic(snapshot, order), ["web"], order));

if (what === "memory") {
  const held = [];
  // As bytes, which is what a server holds.
  for (const order of [undefined, prefer, last]) {
    held.push(Buffer.from(renderGeneric(order)), Buffer.from(renderTraefik(order)));
  }
  globalThis.gc?.();
  console.log(JSON.stringify({ rss: process.memoryUsage.rss(), documents: held.reduce((n, d) => n + d.length, 0) }));
} else {
  const timed = (render) => {
    const times = [];
    for (let round = -2; round < Number(what); round++) {
      const started = performance.now();
      render();
      if (round >= 0) times.push(performance.now() - started);
    }
    return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
  };
  const times = {
    generic: timed(() => renderGeneric(undefined)),
    traefik: timed(() => renderTraefik(prefer)),
    parsed: timed(() => JSON.parse(text)),
  };
  writeFileSync(`${last}/generic.json`, renderGeneric(undefined));
  writeFileSync(`${last}/traefik.json`, renderTraefik(prefer));
  console.log(JSON.stringify(times));
}
