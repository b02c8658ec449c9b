// Package store keeps the read models: what follows from the event log, is not
// needed to decide anything, and is dear to count anew for each question. They
// live in one bbolt file, <data>/projections.db:
//
//	rates        events of each queue by minute, and enqueued by second
//	totals       events by type, and of each queue by type
//	dead letters of each queue by reason
//	replayed     dead messages that were replayed, by the queue in which they died
//	operations   which requests with an Idempotency-Key were carried out
//
// A Store follows the log behind the write path, on any node, at a position of
// its own, about one bbolt transaction a second. What it answers is therefore
// up to about a second old; Position tells how old.
//
// # The one invariant
//
// What the file holds at a position is the fold of the log up to there: however
// the blocks were cut into batches and wherever the process died in between
// (I13). So position and counts change in the same transaction, and what is
// dropped for its age is dropped by the log's clock.
//
// # When the file is wrong
//
// It can always be counted anew, so nothing about it stops a node. It is thrown
// away and rebuilt from the log when it doesn't open, when a value's checksum
// is wrong (bbolt itself does not notice flipped bits), when it belongs to
// another cluster or another version of this format, and when its position lies
// beyond the log's end or has another chain than the log has there. After a
// rebuild the counts cover the history that the log still holds.
//
// Transactions are synced although the file is expendable: without it, a power
// cut could leave new roots over old pages, which opens and counts wrongly, and
// two fsyncs a second off the write path cost less than a rebuild after each
// unclean stop.
package store
