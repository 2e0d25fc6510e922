// Records what the public agent chat front end sends: its hook (useStream) and its client, with the
// options that it gives them. See recorded_session.json, which this writes.
//
//   npm install @langchain/langgraph-sdk@1.12.0 @langchain/core react react-dom happy-dom
//   node record_session.mjs http://127.0.0.1:PORT/langgraph TOKEN > recorded_session.json
import { Window } from "happy-dom";

const [apiUrl, apiKey] = process.argv.slice(2);
const window = new Window({ url: "http://localhost:3000/" });
Object.assign(globalThis, { window, document: window.document });

const React = (await import("react")).default;
const { createRoot } = await import("react-dom/client");
const { Client } = await import("@langchain/langgraph-sdk");
const { useStream } = await import("@langchain/langgraph-sdk/react");

const calls = [];
const known = {}; // what ids are called in the recording

async function recorded(url, init = {}) {
  const headers = Object.fromEntries(new Headers(init.headers));
  delete headers["x-api-key"];
  const body = init.body ? JSON.parse(named(init.body)) : null;
  const path = named(`${url}`.slice(apiUrl.length));
  const call = { method: init.method ?? "GET", path, headers, body };
  calls.push(call);
  const response = await fetch(url, init);
  call.status = response.status;
  const place = response.headers.get("content-location");
  if (place) known.run = place.split("/").at(-1);
  const found = response.headers.get("content-type")?.startsWith("application/json")
    ? await response.clone().json()
    : null;
  if (found?.thread_id) known.thread = found.thread_id;
  if (Array.isArray(found) && found[0]?.checkpoint) known.head = found[0].checkpoint.checkpoint_id;
  return response;
}

function named(text) {
  for (const [name, id] of Object.entries(known)) text = text.replaceAll(id, `{${name}}`);
  return text;
}

const client = new Client({ apiUrl, apiKey, callerOptions: { fetch: recorded } });
const storage = new Map();
const session = {
  getItem: (key) => storage.get(key) ?? null,
  setItem: (key, value) => storage.set(key, value),
  removeItem: (key) => storage.delete(key),
};
let stream;
let threadId = null;

function Session() {
  const [id, setId] = React.useState(threadId);
  stream = useStream({
    client,
    assistantId: "chat",
    threadId: id,
    fetchStateHistory: true,
    reconnectOnMount: () => session,
    onCustomEvent: () => {},
    onThreadId: (found) => setId((threadId = found)),
  });
  void [stream.messages, stream.interrupt]; // the hook asks for what is looked at
  return null;
}

async function until(isSo, what) {
  for (let count = 0; count < 600; count += 1) {
    if (isSo()) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited in vain: ${what}; ${stream.error}`);
}

function human(text) {
  return { id: crypto.randomUUID(), type: "human", content: [{ type: "text", text }] };
}

const options = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };

async function say(text, more = {}) {
  const { length } = stream.messages;
  void stream.submit({ messages: [human(text)], ...more }, options);
  await until(() => stream.messages.length > length && stream.isLoading, `said ${text}`);
}

async function rests(what) {
  await until(() => !stream.isLoading, what);
  if (stream.error) throw stream.error;
}

await recorded(`${apiUrl}/info`, { headers: { "X-Api-Key": apiKey } });
await client.threads.search({ metadata: { graph_id: "chat" }, limit: 100 });
let root = createRoot(window.document.createElement("div"));
root.render(React.createElement(Session));
await until(() => stream !== undefined, "rendered");

await say("hello");
await rests("answered");
await say("delete it");
await until(() => stream.interrupt && !stream.isLoading, "asked");
void stream.submit({}, { command: { resume: { decisions: [{ type: "approve" }] } } });
await until(() => stream.messages.at(-1)?.content === "Deleted: approve", "approved");
await rests("approved");
await say("delete more");
await until(() => stream.interrupt && !stream.isLoading, "asked again");
void stream.submit({}, { command: { goto: "__end__" } });
await until(() => stream.isLoading, "resolving");
await rests("resolved");
await say("wait", { pause: 600 });
await until(() => storage.size, "running");
root.unmount();
root = createRoot(window.document.createElement("div"));
root.render(React.createElement(Session));
await until(() => calls.at(-1).path.includes("/stream?"), "joined");
await until(() => stream.isLoading && calls.at(-1).status, "joined");
await stream.stop();
await until(() => calls.at(-1).path.includes("/cancel"), "stopped");
await new Promise((resolve) => setTimeout(resolve, 1000));
root.unmount();
await client.threads.search({ metadata: { graph_id: "chat" }, limit: 100 });

const made = { with: "@langchain/langgraph-sdk 1.12.0, as the agent chat front end calls it" };
process.stdout.write(`${JSON.stringify({ ...made, messages: stream.messages.length, calls }, null, 2)}\n`);
process.exit(0);
