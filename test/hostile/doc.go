// Command hostile trains a model under golaunch while another process attacks the job's
// store, and compares the steps with those during which the same attack goes against a
// store of a process that has nothing to do with the job.
//
//	go run ./test/hostile                 # the attacker is this user, then another one (as root)
//	go run ./test/hostile -runs 1
//	go run ./test/hostile -golaunch FILE  # of another build
//
// The attack on either store is 2,000 connections that never send a byte, 520 waits for
// 131,071 empty keys, and 10,000 frames: noise, requests cut off, lengths of exabytes,
// refused codes, values that fill the table. It begins with the first step and is spread
// over the training. Every 20 steps it changes from one store to the other, so that both
// share what else the machine does. The connections stay open until the job has ended.
//
// The exit code is 1 unless all losses are those of an undisturbed run bit for bit, the
// 99th percentile of a step's time is at most 1.2 times that under the attack on the
// other store, and the peak memory of every golaunch process is below 200 MB.
package main
