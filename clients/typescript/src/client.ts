/**
 * The client. Rules:
 *
 * - A request is sent again until the server has answered, or the patience is over. So each request
 *   that changes something has a key, made before it is sent for the first time: it takes effect
 *   once, whatever became of the lost ones.
 * - A reader of events continues after the last event it was given, whichever server answers.
 */

import { errorOf, RunFailed, Unavailable, WaitTimeout } from "./errors.ts";
import { EventReader } from "./events.ts";
import type { ClientEvent } from "./events.ts";
import type {
  AnswersRequest,
  CancelDocument,
  CheckpointLine,
  HistoryDocument,
  InboxDocument,
  InboxLine,
  Json,
  LsDocument,
  MessageRequest,
  RunDocument,
  RunRequest,
  SendDocument,
  ShowDocument,
  SubmitDocument,
  ThreadLine,
} from "./types.ts";

const LONGEST_POLL = 20;
const SILENCE = 60;
const FIRST_PAUSE = 0.05;
const LONGEST_PAUSE = 2;
const LATER = new Set([429, 502, 503, 504]);

export interface ClientOptions {
  /** Seconds for which a call is repeated while the server does not answer; 60. */
  patience?: number;
  fetch?: typeof fetch;
}

/** What `submit` takes beside the input; without `thread`, a new one. */
export type Submitting = Partial<Omit<RunRequest, "input" | "again">> & { thread?: string };
/** `answer` is for the only open question, `answers` for several by their ids. */
export type Answering = AnswersRequest;
export type Listing = {
  status?: string;
  graph?: string;
  tag?: string;
  prefix?: string;
  after?: string;
};
export interface Following {
  /** A seq, or the id of an event. */
  after?: number | string;
  /** Add the values that nodes emit. */
  emitted?: boolean;
  /** Do not end when the run stops, but have an event `stopped`. */
  stay?: boolean;
}

type Query = { [name: string]: string | number | undefined };

/** A client of a server, whose start URL without its token is `url`. */
export class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #patience: number;
  readonly #fetch: typeof fetch;

  constructor(url: string, token: string | null = null, options: ClientOptions = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    this.#patience = options.patience ?? 60;
    this.#fetch = options.fetch ?? ((...given) => fetch(...given));
  }

  /**
   * Queue a run for the workers. Each call is a run of its own, unless it has another's key: that
   * run is found as it is. With `options.retry` one that failed or was cancelled is retried.
   */
  async submit(input: RunRequest["input"], given: Submitting = {}): Promise<SubmitDocument> {
    const { thread = crypto.randomUUID(), ...more } = given;
    const options = { retry: false, ...more.options };
    const body = { key: crypto.randomUUID(), ...more, options, input };
    return this.#post(pathOf(thread, "runs"), body);
  }

  /** Answer open questions of a thread. */
  async answer(thread: string, given: Answering): Promise<SubmitDocument> {
    return this.#post(pathOf(thread, "answers"), { key: crypto.randomUUID(), ...given });
  }

  /** Send a message to a thread, whatever its run does. */
  async send(
    thread: string,
    value: Json,
    given: Omit<MessageRequest, "value"> = {},
  ): Promise<SendDocument> {
    return this.#post(pathOf(thread, "messages"), { key: crypto.randomUUID(), ...given, value });
  }

  /** Queue a thread whose run failed, was lost or was cancelled for the workers. */
  async retry(thread: string, given: { delay?: number } = {}): Promise<SubmitDocument> {
    return this.#post(pathOf(thread, "retry"), given);
  }

  /** Cancel a thread's unfinished run; false if there was none. */
  async cancel(thread: string, run_id?: string): Promise<boolean> {
    const run = run_id ?? (await this.state(thread)).checkpoint.run_id;
    const path = pathOf(thread, "cancel") + queryOf({ run_id: run });
    const found: CancelDocument = await this.#json("POST", path);
    return found.cancelled;
  }

  /** Wait until the thread's run ends or asks something; a failed one raises `RunFailed`. */
  async wait(thread: string, timeout = Infinity): Promise<RunDocument> {
    const end = now() + timeout;
    for (;;) {
      const left = end - now();
      const wait = Math.max(0.01, Math.min(LONGEST_POLL, left));
      const path = pathOf(thread, "result") + queryOf({ wait: wait.toFixed(3) });
      const response = await this.#answered("GET", path, undefined, wait + 60);
      if (response.status === 200) {
        const run = (await response.json()) as RunDocument;
        if (run.status === "failed" || run.status === "cancelled") throw new RunFailed(run);
        return run;
      }
      await response.text();
      if (left <= 0) throw new WaitTimeout(thread, timeout);
    }
  }

  /** A thread's state at its head, or at a checkpoint given by seq or id. */
  async state(thread: string, at?: number | string): Promise<ShowDocument> {
    return this.#json("GET", pathOf(thread) + queryOf({ at }));
  }

  /** The thread's checkpoints, newest first. */
  async *history(thread: string): AsyncGenerator<CheckpointLine> {
    let before: number | undefined;
    do {
      const path = pathOf(thread, "history") + queryOf({ before });
      const page: HistoryDocument = await this.#json("GET", path);
      yield* page.checkpoints;
      before = page.next ?? undefined;
    } while (before !== undefined);
  }

  /** The tenant's threads, by name. */
  async *threads(given: Listing = {}): AsyncGenerator<ThreadLine> {
    let after = given.after;
    do {
      const path = "/v1/threads" + queryOf({ ...given, after });
      const page: LsDocument = await this.#json("GET", path);
      yield* page.threads;
      after = page.next ?? undefined;
    } while (after !== undefined);
  }

  /** The threads with open questions, by name: the inbox. */
  async *questions(graph?: string): AsyncGenerator<InboxLine> {
    let after: string | undefined;
    do {
      const path = "/v1/questions" + queryOf({ graph, after });
      const page: InboxDocument = await this.#json("GET", path);
      yield* page.threads;
      after = page.next ?? undefined;
    } while (after !== undefined);
  }

  /**
   * A thread's events after an id, then those to come, until its run stops. None is missed and none
   * comes twice, however often the connection is lost.
   */
  async *follow(thread: string, given: Following = {}): AsyncGenerator<ClientEvent> {
    let last = String(given.after ?? 0);
    const waiting = new Patience(this.#patience);
    for (;;) {
      let reason = "the stream ended";
      const silence = new Silence();
      try {
        const headers = { ...this.#headers, Accept: "text/event-stream", "Last-Event-ID": last };
        const options = { headers, signal: silence.signal };
        const response = await this.#fetch(this.#url + pathOf(thread, "events"), options);
        if (response.status !== 200 && !LATER.has(response.status)) {
          throw new Final(await errorOf(response));
        }
        if (response.status === 200 && response.body !== null) {
          const reader = new EventReader();
          const decoder = new TextDecoder();
          for await (const part of response.body) {
            waiting.renew();
            silence.renew();
            for (const event of reader.read(decoder.decode(part, { stream: true }))) {
              last = event.id ?? last;
              if (event.type === "stopped" && given.stay !== true) return;
              const isAsked = event.type === "state" || event.type === "stopped";
              if (isAsked || given.emitted === true) {
                silence.end();
                yield event;
                silence.renew();
              }
            }
          }
        } else {
          reason = `status ${response.status}`;
        }
      } catch (error) {
        if (error instanceof Final) throw error.error;
        reason = String(error);
      } finally {
        silence.abort();
      }
      await waiting.pause(reason);
    }
  }

  async #post<T>(path: string, body: object): Promise<T> {
    return this.#json("POST", path, body);
  }

  async #json<T>(method: string, path: string, body?: object): Promise<T> {
    return JSON.parse(await (await this.#answered(method, path, body)).text()) as T;
  }

  async #answered(method: string, path: string, body?: object, seconds = 60): Promise<Response> {
    const waiting = new Patience(this.#patience);
    const headers: Record<string, string> = { ...this.#headers };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    for (;;) {
      let reason: string;
      try {
        const signal = AbortSignal.timeout(seconds * 1000);
        const sent = body === undefined ? {} : { body: JSON.stringify(body) };
        const response = await this.#fetch(this.#url + path, { method, headers, signal, ...sent });
        const content = await response.arrayBuffer(); // it may be lost half-way
        const whole = new Response(content, { status: response.status });
        if (response.ok) return whole;
        if (!LATER.has(response.status)) throw new Final(await errorOf(whole));
        reason = `status ${response.status}`;
      } catch (error) {
        if (error instanceof Final) throw error.error;
        reason = String(error);
      }
      await waiting.pause(reason);
    }
  }
}

/** What the server has answered: not a lost response. */
class Final {
  readonly error: Error;

  constructor(error: Error) {
    this.error = error;
  }
}

/** How long a call is repeated: so many seconds since the server was last heard. */
class Patience {
  readonly #seconds: number;
  #end = 0;
  #pause = FIRST_PAUSE;

  constructor(seconds: number) {
    this.#seconds = seconds;
    this.renew();
  }

  renew(): void {
    this.#end = now() + this.#seconds;
    this.#pause = FIRST_PAUSE;
  }

  async pause(reason: string): Promise<void> {
    if (now() >= this.#end) throw new Unavailable(reason, this.#seconds);
    const seconds = this.#pause * (0.5 + Math.random() / 2);
    this.#pause = Math.min(LONGEST_PAUSE, this.#pause * 2);
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

/** Aborts a stream in which nothing came for a while: servers send a comment every 15 seconds. */
class Silence {
  readonly #controller = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    this.renew();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  renew(): void {
    this.end();
    this.#timer = setTimeout(() => this.#controller.abort(), SILENCE * 1000);
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  abort(): void {
    this.end();
    this.#controller.abort();
  }
}

function now(): number {
  return performance.now() / 1000;
}

function pathOf(thread: string, ...parts: string[]): string {
  if (/^\.{1,2}$/.test(thread)) throw new RangeError("URLs cannot have a thread named . or ..");
  return ["/v1/threads", encodeURIComponent(thread), ...parts].join("/");
}

function queryOf(given: Query): string {
  const found = Object.entries(given).filter(([, value]) => value !== undefined);
  return found.length === 0 ? "" : `?${new URLSearchParams(found as [string, string][])}`;
}
