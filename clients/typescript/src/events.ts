/** Server-Sent Events: text, as it comes, to events. */

import type { EmittedEvent, MissedEvent, StoppedEvent, StateEvent } from "./types.ts";

/** An event of a followed thread. `id` is what `follow({ after })` continues after. */
export type ClientEvent =
  | ({ type: "state"; id: string } & StateEvent)
  | ({ type: "emit"; id: string | null } & EmittedEvent)
  | ({ type: "missed"; id: null } & MissedEvent)
  | ({ type: "stopped"; id: null } & StoppedEvent);

const KNOWN = new Set(["state", "emit", "missed", "stopped"]); // newer servers may have more

/** Reads one response. A line ends with LF: text of a state may have other separators. */
export class EventReader {
  #rest = "";
  #fields = new Map<string, string>();

  /** The events that are complete with this text. */
  *read(text: string): Generator<ClientEvent> {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const whole of lines) {
      const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
      const colon = line.indexOf(":");
      if (line === "") {
        const event = this.#complete();
        if (event !== null) yield event;
      } else if (colon > 0) {
        this.#fields.set(line.slice(0, colon), line.slice(colon + 1).replace(/^ /, ""));
      }
    }
  }

  #complete(): ClientEvent | null {
    const fields = this.#fields;
    this.#fields = new Map();
    const type = fields.get("event");
    const data = fields.get("data");
    if (type === undefined || data === undefined || !KNOWN.has(type)) return null;
    return { ...JSON.parse(data), type, id: fields.get("id") ?? null } as ClientEvent;
  }
}
