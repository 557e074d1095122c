import { DurableObject } from "cloudflare:workers";

/** Counts, in a table of its own SQLite database. */
export class Counter extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)");
  }

  increment() {
    const row = this.ctx.storage.sql
      .exec("INSERT INTO counter VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value")
      .one();
    return row.value;
  }

  value() {
    const [row] = this.ctx.storage.sql.exec("SELECT value FROM counter").toArray();
    return row?.value ?? 0;
  }
}

export default {
  /** Every path has a counter of its own. HEAD and `?peek` look without counting. */
  async fetch(request, env) {
    const url = new URL(request.url);
    const counter = env.COUNTER.getByName(url.pathname);
    const peek = request.method === "HEAD" || url.searchParams.has("peek");
    const value = peek ? await counter.value() : await counter.increment();
    return new Response(`${value}\n`);
  },
};
