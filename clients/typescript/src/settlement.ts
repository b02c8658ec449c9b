/** Thrown by a handler, it returns the message for another try after a delay, instead of the
 * policy's backoff. Its text is that of the cause. */
export class RetryAfter extends Error {
  constructor(readonly delayMs: number, cause: unknown = `retry after ${delayMs} ms`) {
    super(textOf(cause), { cause });
  }
}

/** Thrown by a handler, it returns the message for after a delay, as if it had not been leased: it
 * is not this message's time, and no attempt has failed. */
export class Snooze extends Error {
  constructor(readonly delayMs: number) {
    super(`snoozed for ${delayMs} ms`);
  }
}

/** Thrown by a handler, it ends the message without another try: it moves to the dead-letter queue
 * with the text of the cause; without such a queue it is discarded. */
export class DeadLetter extends Error {
  constructor(cause: unknown = "given up") {
    super(textOf(cause), { cause });
  }
}

/** Why a handler's signal is aborted: another worker gets the message, and the handler's result
 * changes nothing. */
export class LeaseLost extends Error {
  constructor() {
    super("the lease is lost");
  }
}

/** Why a handler's signal is aborted: the worker's grace is over. */
export class Stopping extends Error {
  constructor() {
    super("the worker stops");
  }
}

/** How a lease is settled. A dead letter is a retry that is not retryable: they share requests. */
export interface Settlement {
  verb: "ack" | "retry" | "release" | "extend";
  item: { error?: string; delay_ms?: number; retryable?: boolean; lease_ms?: number };
}

/** Returns how a lease is settled after its handler threw. */
export function settlement(thrown: unknown, stopping: boolean): Settlement {
  if (stopping) {
    return { verb: "release", item: {} };
  }
  const error = textOf(thrown);
  for (let e = thrown; e instanceof Error; e = e.cause) {
    if (e instanceof Snooze) {
      return { verb: "release", item: { delay_ms: delayOf(e.delayMs) } };
    }
    if (e instanceof RetryAfter) {
      return { verb: "retry", item: { error, delay_ms: delayOf(e.delayMs) } };
    }
    if (e instanceof DeadLetter) {
      return { verb: "retry", item: { error, retryable: false } };
    }
  }
  return { verb: "retry", item: { error } };
}

/** The longest delay that the server takes, and how many characters of an error surely fit. */
const maxDelay = 315_360_000_000;
const maxText = 16 << 10;

function delayOf(ms: number): number {
  return Math.min(Math.max(0, Math.round(ms)), maxDelay) || 0;
}

/** Returns the text of what was thrown, well-formed. */
function textOf(thrown: unknown): string {
  let text: string;
  try {
    text = thrown instanceof Error && thrown.name === "Error" ? thrown.message : String(thrown);
  } catch {
    text = "an error whose text throws";
  }
  return Buffer.from(text.slice(0, maxText)).toString();
}
