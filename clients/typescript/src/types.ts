// Written by scripts/typescript_types.py from the OpenAPI document; do not edit it here.

/** A value of a state: whatever JSON can express. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** This server, and its description's address. */
export interface StartDocument {
  milecastle: string;
  openapi: string;
}

/** The graphs this server runs. */
export interface GraphsDocument {
  graphs: GraphLine[];
}

/** A graph this server runs. */
export interface GraphLine {
  graph: string;
  fingerprint: string;
  nodes: string[];
}

/** ``graph``. ``input`` is the inputs' JSON schema; ``null`` if only the manifest is known. */
export interface GraphDocument {
  graph: string;
  fingerprint: string;
  form: string;
  drawing: string;
  manifest: Json;
  input?: Json;
}

/** ``ls``. ``next`` is the next page's ``after``, if there is one. */
export interface LsDocument {
  tenant: string;
  threads: ThreadLine[];
  next?: string | null;
}

/**
 * A thread, derived from its log's head; ``run_id`` and the times are the head's run's.
 *
 * ``wake_at`` is when it may resume, if it sleeps; ``questions`` is how many are open. ``status``
 * is ``lost`` if it is recorded as running but not known to be running; ``reason`` says why.
 * ``kind`` is ``files`` for file runs: then all fields are the newest run's.
 */
export interface ThreadLine {
  thread: string;
  status: string;
  graph: string;
  run_id: string;
  started_at: string;
  ended_at: string | null;
  kind?: "files" | "thread";
  wake_at?: string | null;
  questions?: number;
  reason?: string;
  tags?: string[];
}

/**
 * ``show``. ``undecoded`` maps channels that need the graph's code to the reasons.
 *
 * ``tasks`` has the next step's nodes, if it has several tasks. ``status`` is ``lost`` if the
 * thread is recorded as running but not known to be running; ``reason`` says why. ``tags`` are the
 * thread's now.
 */
export interface ShowDocument {
  tenant: string;
  thread: string;
  checkpoint: CheckpointLine;
  status: string;
  run: RunLine | null;
  state: Json;
  questions: QuestionLine[];
  undecoded: { [name: string]: string };
  tasks?: TaskLine[];
  reason?: string;
  tags?: string[];
}

/** A checkpoint without its state. */
export interface CheckpointLine {
  seq: number;
  id: string;
  parent_id: string | null;
  step: number;
  source: string;
  nodes: string[];
  next: string[];
  run_id: string;
  fingerprint: string;
  timestamp: string;
  note: string;
}

/** A run record. */
export interface RunLine {
  thread: string;
  run_id: string;
  graph: string;
  fingerprint: string;
  mode: string;
  status: string;
  retry_count: number;
  previous_run_id: string | null;
  started_at: string;
  ended_at: string | null;
  metadata: { [name: string]: string };
  failure: FailureLine | null;
}

/** Why a run failed or was cancelled. */
export interface FailureLine {
  failure_class: string;
  resumable: boolean;
  node: string | null;
  error_type: string;
  message: string;
  traceback: string[];
  causes: string[];
  attempt: number;
  time: string;
  tasks?: TaskFailureLine[];
}

/** Failure of one task in a step with several. */
export interface TaskFailureLine {
  task: string;
  node: string;
  error_type: string;
  message: string;
  attempt: number;
}

/**
 * An open question. ``answer`` is the JSON schema of valid answers; ``null``: anything.
 *
 * ``refused`` says why the last answer was refused, ``until`` when the question times out.
 * ``digest`` identifies the question as it is shown.
 */
export interface QuestionLine {
  id: string;
  node: string;
  question: Json;
  show: Json;
  answer: Json;
  refused?: string | null;
  until?: string | null;
  digest?: string | null;
}

/** A node's tasks in the next step, and how many have ended. */
export interface TaskLine {
  node: string;
  done: number;
  total: number;
}

/** ``delete``. */
export interface DeleteDocument {
  tenant: string;
  thread: string;
  deleted: boolean;
}

/** ``history``, newest first. ``next`` is the next page's ``before``, if there is one. */
export interface HistoryDocument {
  tenant: string;
  thread: string;
  checkpoints: CheckpointLine[];
  next?: number | null;
}

/**
 * ``diff``. ``a`` and ``b`` are ``thread@seq``.
 *
 * ``not_compared`` are the channels that cannot be read without the graph's code, each with the
 * reason: ``changes`` does not include them.
 */
export interface DiffDocument {
  tenant: string;
  a: string;
  b: string;
  changes: ChangeLine[];
  not_compared?: { [name: string]: string };
}

/** One difference; ``old`` and ``new`` are ``null`` where there is none. */
export interface ChangeLine {
  path: string;
  kind: "added" | "changed" | "removed";
  old: Json;
  new: Json;
}

/**
 * ``runs``. With ``--retry-all`` and the like it lists none, but how many it changed.
 *
 * ``skipped`` are those changed by others in between, or refused. ``next`` is where the next page
 * begins, if the runs are listed in pages.
 */
export interface RunsDocument {
  tenant: string;
  runs: RunLine[];
  changed?: number;
  skipped?: number;
  next?: string | null;
}

/**
 * ``run``, ``resume``, ``answer``: how the run stopped.
 *
 * ``reused`` is true if nothing was run: the result is a completed run's. ``failure`` says why a
 * run failed or was cancelled.
 */
export interface RunDocument {
  tenant: string | null;
  thread: string | null;
  run_id: string;
  status: string;
  nodes: string[];
  next: string[];
  step: number;
  timestamp: string;
  wake_at: string | null;
  questions: QuestionLine[];
  state: Json;
  reused: boolean;
  failure?: FailureLine | null;
}

/**
 * ``submit`` and ``retry``. ``reused``: nothing was started, because this run was found.
 *
 * ``seq`` is the checkpoint that queued the run, if one was written.
 */
export interface SubmitDocument {
  tenant: string;
  thread: string;
  run_id: string;
  status: string;
  reused: boolean;
  seq?: number | null;
}

/**
 * A run. ``graph`` is needed if the server has several and the thread is new.
 *
 * ``key`` is an idempotency key, as is the header ``Idempotency-Key``. A new run adds ``tags`` to
 * its thread. ``keys``, one name and its value, is its key for limits by key. ``config`` has the
 * type the graph declares.
 */
export interface RunRequest {
  input: { [name: string]: Json };
  graph?: string | null;
  key?: string | null;
  again?: boolean;
  priority?: number;
  delay?: number;
  options?: RunOptions;
  tags?: string[];
  keys?: { [name: string]: string } | null;
  config?: { [name: string]: Json } | null;
}

/**
 * Policy for a thread that is busy, or exists, and for a run started before.
 *
 * Without ``retry`` a failed run with this input or key is returned as it is.
 */
export interface RunOptions {
  if_busy?: "cancel" | "queue" | "reject";
  if_absent?: boolean;
  retry?: boolean;
}

/**
 * Answers by their questions' ids, or ``answer`` to the only open question.
 *
 * ``key`` identifies them, as does the header ``Idempotency-Key``: sent again, they are the same.
 * ``config`` replaces the run's. The caller's name is stored with them, and ``reason`` and
 * ``on_behalf_of``, a second name, as the caller says. With ``shown``, the question's ``digest``,
 * an answer is refused if the question has changed since it was shown.
 */
export interface AnswersRequest {
  answers?: { [name: string]: Json };
  answer?: Json;
  key?: string | null;
  config?: { [name: string]: Json } | null;
  reason?: string;
  shown?: string | null;
  on_behalf_of?: string | null;
}

/**
 * ``audit``: a thread's answers, oldest first.
 *
 * ``next`` is the next page's ``after``, if there is one.
 */
export interface AuditDocument {
  tenant: string;
  thread: string;
  answers: AnswerLine[];
  next?: number | null;
}

/**
 * An answer, or a question's end at its deadline (``timed_out``).
 *
 * ``by`` and ``reason`` come from the person who answered, if given: ``how`` is ``authenticated``
 * if a server's token says so, else ``asserted``. ``on_behalf_of`` is always asserted.
 */
export interface AnswerLine {
  question: string;
  answer: Json;
  by: string | null;
  how: string | null;
  on_behalf_of: string | null;
  reason: string;
  time: string;
  timed_out: boolean;
  seq: number;
  run_id: string;
  digest: string | null;
}

/**
 * ``send``: the message's number. ``reused``: it was sent before, and nothing was written.
 *
 * ``status`` is the thread's when the message was stored.
 */
export interface SendDocument {
  tenant: string;
  thread: string;
  number: number;
  reused: boolean;
  status: string;
}

/**
 * A message. With ``key``, or the header ``Idempotency-Key``, sending it again is safe.
 *
 * ``by`` names the sender, as the sender says. With ``quiet`` a waiting thread is due so many
 * seconds after its last message, at most ``at_most`` seconds after the first.
 */
export interface MessageRequest {
  value: Json;
  topic?: string;
  key?: string | null;
  by?: string | null;
  quiet?: number | null;
  at_most?: number | null;
}

/**
 * ``mailbox``: a thread's unread messages, oldest first.
 *
 * ``next`` is the next page's ``after``, if there is one.
 */
export interface MailboxDocument {
  tenant: string;
  thread: string;
  messages: MessageLine[];
  next?: number | null;
}

/** An unread message. ``key`` and ``by`` are the sender's, if given. */
export interface MessageLine {
  number: number;
  topic: string;
  value: Json;
  key: string | null;
  by: string | null;
  sent_at: string;
}

/** After how many seconds to resume; ``config`` replaces the run's. */
export interface RetryRequest {
  delay?: number;
  config?: { [name: string]: Json } | null;
}

/** ``cancel``. ``cancelled`` is false if the thread had no unfinished run. */
export interface CancelDocument {
  tenant: string;
  thread: string;
  cancelled: boolean;
}

/** ``fork``, ``update``: the new checkpoint. */
export interface WrittenDocument {
  tenant: string;
  thread: string;
  checkpoint: CheckpointLine;
}

/** The checkpoint to go back to, by seq or id; ``as_thread`` names another thread for it. */
export interface ForkRequest {
  at: number | string;
  as_thread?: string | null;
}

/** ``tag``: the thread's tags afterwards. */
export interface TagDocument {
  tenant: string;
  thread: string;
  tags: string[];
}

/** The tags to add and to remove. */
export interface TagRequest {
  add?: string[];
  remove?: string[];
}

/** The channels to change; ``at`` branches off an older checkpoint. */
export interface UpdateRequest {
  update: { [name: string]: Json };
  at?: number | string | null;
}

/** Open questions. ``next`` is the next page's ``after``, if there is one. */
export interface InboxDocument {
  tenant: string;
  threads: InboxLine[];
  next?: string | null;
}

/**
 * A thread that waits for answers.
 *
 * ``questions`` is empty if the thread is encrypted and the server does not have its key;
 * ``count`` is how many there are, and ``asked_at`` since when they wait.
 */
export interface InboxLine {
  thread: string;
  graph: string;
  run_id: string;
  count: number;
  questions: QuestionLine[];
  asked_at?: string | null;
}

/**
 * A change to many runs or threads: how many were found, and its progress.
 *
 * ``status`` is the status of the job's run. ``skipped`` are those changed by others in between,
 * or refused.
 */
export interface JobDocument {
  job: string;
  action: "cancel" | "delete" | "retry";
  status: string;
  found: number;
  changed: number;
  skipped: number;
}

/** Which runs: current ones with a status, for a graph's threads, at most ``limit``. */
export interface BulkRequest {
  status: "cancelled" | "completed" | "failed" | "interrupted" | "queued" | "running" | "sleeping";
  graph?: string | null;
  limit?: number | null;
}

/** ``event: state``, with ``id: SEQ``: a checkpoint was committed. */
export interface StateEvent {
  seq: number;
  step: number;
  run_id: string;
  time: string;
  source: string;
  nodes: string[];
  next: string[];
  state: Json;
}

/**
 * ``event: emit``: a node emitted a value. It is replayed if it has an ``offset``.
 *
 * ``begins`` marks an attempt's first value: a retried task begins again.
 */
export interface EmittedEvent {
  run_id: string;
  time: string;
  step: number;
  node: string | null;
  task: string | null;
  attempt: number | null;
  value: Json;
  offset?: number | null;
  begins?: boolean;
}

/** ``event: missed``: the number of emitted values lost on the way. */
export interface MissedEvent {
  run_id: string;
  count: number;
}

/** ``event: stopped``: the run has stopped. The stream stays open: it may be resumed. */
export interface StoppedEvent {
  thread: ThreadLine;
}

/**
 * RFC 9457. ``code`` is ours: ``milecastle explain CODE`` explains it; ``null`` for a bug.
 *
 * ``reasons`` has every reason why a thread was not resumed.
 */
export interface ProblemDocument {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string | null;
  reasons?: string[];
}
