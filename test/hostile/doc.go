// Command hostile trains a model under golaunch while another process attacks the job's store. It
// compares the times of these steps with those of steps during which the same process attacks the
// store of an unrelated process.
//
//	go run ./test/hostile                 # the attacker is this user and, if this user is root, then another user
//	go run ./test/hostile -runs 1
//	go run ./test/hostile -golaunch FILE  # attack the golaunch of another build
//
// The attack on each store is 2,000 connections that never send a byte, 520 requests that wait for
// 131,071 empty keys, and 10,000 frames: random bytes, truncated requests, lengths of exabytes, unknown
// codes, and values that fill the store's table. The attack begins with the first step and lasts as long
// as the training. Every 20 steps the attacker changes from one store to the other, so that other load
// of the machine affects both alike. The connections stay open until the job has ended.
//
// The exit code is 0 only if all losses equal those of an undisturbed run bit for bit, the 99th
// percentile of a step's time is at most 1.2 times that under the attack on the other store, and the
// peak memory of every golaunch process is below 200 MB.
package main
