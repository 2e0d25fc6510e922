/** A server's problem documents as errors. */

import type { ProblemDocument, RunDocument } from "./types.ts";

/** A request that the server refused. `code` is explained in docs/errors.md. */
export class MilecastleError extends Error {
  readonly code: string | null;
  readonly status: number;
  readonly reasons: readonly string[];

  constructor(message: string, code: string | null = null, status = 0, reasons: string[] = []) {
    super(code === null ? message : `${message} [${code}]`);
    this.name = new.target.name;
    this.code = code;
    this.status = status;
    this.reasons = reasons;
  }
}

/** The run failed (MC210) or was cancelled (MC206). */
export class RunFailed extends MilecastleError {
  readonly run: RunDocument;

  constructor(run: RunDocument) {
    const why = run.failure ? `${run.failure.error_type}: ${run.failure.message}` : run.status;
    const isCancelled = run.status === "cancelled";
    const what = isCancelled ? "was cancelled" : `failed: ${why}`;
    super(
      `run ${run.run_id} of thread '${run.thread}' ${what}; retry it to continue from its last step`,
      isCancelled ? "MC206" : "MC210",
    );
    this.run = run;
  }
}

/** The server has not answered for as long as the client's patience. */
export class Unavailable extends MilecastleError {
  constructor(reason: string, seconds: number) {
    super(
      `the server has not answered for ${seconds} seconds (${reason}); whether the call took ` +
        "effect is unknown, and making it again with the same key is safe",
      "MC403",
    );
  }
}

/** The run has not stopped in time; it continues. */
export class WaitTimeout extends MilecastleError {
  constructor(thread: string, seconds: number) {
    super(`the run of thread '${thread}' has not stopped within ${seconds} seconds; it continues`);
  }
}

export async function errorOf(response: Response): Promise<MilecastleError> {
  const text = await response.text();
  try {
    const problem = JSON.parse(text) as ProblemDocument;
    return new MilecastleError(
      problem.detail,
      problem.code,
      response.status,
      problem.reasons ?? [],
    );
  } catch {
    const what = "there was no explanation: is it a Milecastle server?";
    return new MilecastleError(`status ${response.status}: ${what}`, null, response.status);
  }
}
