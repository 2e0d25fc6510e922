/** Diaries that TypeScript clients write, as in client_kills.py; prints what their readers got. */

import { Client, RunFailed } from "../../clients/typescript/src/index.ts";

type Told = { thread: string; seqs: number[]; wrong: string[] };
type Cheat = { renews_keys: boolean; off: number };

const given = JSON.parse(process.argv[2]!) as {
  url: string;
  token: string;
  threads: string[];
  rounds: number;
  cheat: Cheat;
};

/** Sends what a wrong client sends. */
function cheating({ renews_keys, off }: Cheat): typeof fetch {
  return (url, options = {}) => {
    const headers = new Headers(options.headers);
    const last = headers.get("Last-Event-ID") ?? "0";
    if (off !== 0 && last !== "0") headers.set("Last-Event-ID", String(Number(last) + off));
    const body = options.body === undefined ? {} : JSON.parse(options.body as string);
    const key = renews_keys && "key" in body ? { key: crypto.randomUUID() } : {};
    const changed = options.body === undefined ? {} : { body: JSON.stringify({ ...body, ...key }) };
    return fetch(url, { ...options, headers, ...changed });
  };
}

async function stopped(client: Client, thread: string, status: string): Promise<void> {
  for (;;) {
    try {
      const run = await client.wait(thread);
      if (run.status !== status) throw new Error(`${run.status}, not ${status}`);
      return;
    } catch (error) {
      const type = error instanceof RunFailed && error.run.failure?.error_type;
      if (type !== "WorkersLost") throw error;
      await client.retry(thread);
    }
  }
}

async function read(client: Client, told: Told, state: { isDone: boolean }): Promise<void> {
  for (;;) {
    const isLast = state.isDone;
    for await (const event of client.follow(told.thread, { after: told.seqs.at(-1) ?? 0 })) {
      if (event.type === "state") told.seqs.push(event.seq);
    }
    if (isLast) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function keep(client: Client, thread: string): Promise<Told> {
  const told: Told = { thread, seqs: [], wrong: [] };
  const state = { isDone: false };
  let reading: Promise<void> | undefined;
  try {
    for (let number = 0; number < given.rounds; number++) {
      await client.submit({ log: [`run ${number}`] }, { thread });
      reading ??= read(client, told, state);
      reading.catch(() => undefined);
      await client.send(thread, number, { topic: "words" });
      await stopped(client, thread, "interrupted");
      await client.answer(thread, { answer: number });
      await stopped(client, thread, "completed");
    }
    state.isDone = true;
    await reading;
  } catch (error) {
    told.wrong.push(String(error));
  }
  return told;
}

const client = new Client(given.url, given.token, {
  patience: 3600,
  fetch: cheating(given.cheat),
});
const told = await Promise.all(given.threads.map((thread) => keep(client, thread)));
process.stdout.write(JSON.stringify(told), () => process.exit(0));
