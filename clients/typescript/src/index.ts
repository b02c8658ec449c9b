export * from "./client.js";
export { type Code, type Problem, QlogdError } from "./error.js";
export type { components, operations, paths } from "./schema.js";
export { DeadLetter, LeaseLost, RetryAfter, Snooze, Stopping } from "./settlement.js";
export type { Retry } from "./transport.js";
export * from "./worker.js";
