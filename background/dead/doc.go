// Package dead knows what may be done with dead letters: which of them a filter
// selects, which errors are alike, what an edit makes of a message, and how a
// task takes many of them back to work or purges them. The API and the task
// runner share it, so that a replay of ten and one of a million mean the same.
package dead
