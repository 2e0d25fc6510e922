/** Client of a Milecastle server. See docs/how-to/use-the-clients.md. */

export { Client } from "./client.ts";
export type { Answering, ClientOptions, Following, Listing, Submitting } from "./client.ts";
export { MilecastleError, RunFailed, Unavailable, WaitTimeout } from "./errors.ts";
export type { ClientEvent } from "./events.ts";
export type * from "./types.ts";
