// Package crashtest judges the program from outside while it is killed: many
// clients produce and consume through HTTP, all that they asked and were
// answered is written down (History), and a checker that knows only the
// contract, and nothing of the program, looks for what must not be (Check).
//
//	make crash      200 × kill -9 under load
//	make powercut   the same with the power cut off below ext4 (needs root)
//	make chaos      three nodes: leaders killed, all killed, wiped, paused, cut off
//
// A few kills are part of make test. The checker is tested by histories with
// planted mistakes, so that a campaign without findings means something.
package crashtest
