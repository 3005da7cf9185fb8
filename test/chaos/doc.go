// Command chaos is a fault campaign: it starts small jobs of several processes,
// does something bad to each, and judges whether the job ended in the state
// that its error mode promises, in time, with the culprit named and no process
// left over.
//
//	make chaos                                  the whole campaign, with mutants
//	go run ./test/chaos -n 67 -mutants=false   each fault in each mode once
//	go run ./test/chaos -only 17 -v            one scenario, with its output
//	test/gpu_failures.sh                       some of it on two GPUs, without Go
//
// For a machine without Go, it is all built into a new folder before:
//
//	go run ./test/chaos -build build/chaos && go build -o build/chaos/ ./test/chaos
//	build/chaos/chaos -bin build/chaos -j 8     there
//
// It prints a line for each scenario that failed, with the command that runs it
// again, and a table; the exit code is 1 if one failed. It needs Linux: it
// reads /proc. Filling a disk takes the right to mount one, and being another
// user that to become one; where it is missing those scenarios are skipped.
//
// # Scenarios
//
// Scenario k is a function of the seed and k. It is a fault in an error mode;
// then at random: who starts the job, how many ranks it has, how they are
// connected, which rank is the victim and before which collective, and, in mode
// async, whether the program leaves on an error or is stuck and has to be ended.
// Jobs are started by golaunch; by the campaign itself as a scheduler would,
// with the store in rank 0 ("alone"); or with the store in a process of its own
// ("apart").
//
//	kill          SIGKILL
//	stop          SIGSTOP; SIGCONT when the others have acted, if nobody else sends it
//	delay         the rank comes later than the timeout
//	hiccup        the rank comes late, within the timeout
//	skip          the rank leaves a collective out
//	resize        the rank gives a tensor of twice the size
//	overlap       the rank makes a call whose operands overlap
//	exit          the rank exits with a code of its own
//	socket        one of the rank's connections breaks
//	full disk     the folder for flight records has no room; then kill or stop
//	store         the store is killed, or stopped; then nothing, kill or stop
//	garbage       every listening port, TCP or unix, is sent nonsense, from the start on
//	launcher      golaunch is killed
//	stale graph   the rank steps a parameter between a forward pass and its backward
//	reaper        the process between golaunch and the ranks is killed
//	daemon kinds  every rank starts a daemon that hides in some way; then the job
//	              ends, or a rank, golaunch or the reaper is killed
//	suspend all   SIGSTOP to every process of the job, for longer than the timeout; then
//	              SIGCONT to one after the other
//	stranger      another user forges failures, at every listening port, from the start on
//	two jobs      another job is started with the same MASTER_ADDR and MASTER_PORT
//
// # The judge
//
// It knows what the manuals promise, and shares no code with the
// product; the workers are a program of the campaign's own (test/chaos/worker)
// which uses the product as any other would.
//
//   - What the product has to stand (hiccup, garbage, a stranger, another job, a
//     lost store, a suspension of the whole job, and in mode none a late rank)
//     must leave the job undisturbed: all ranks end with 0, all sums right. A
//     stranger is answered by nobody; all ranks of another job fail, and say what
//     tells the jobs apart.
//   - In blocking wait, if all ranks live, each must catch an error, and all
//     together make another group in the same processes and finish. If one is
//     dead, the others must be told, and told again by the deadline of the new
//     group.
//   - In clean-up only, the processes must live on, and calls on the failed
//     group must fail.
//   - In async, the processes must end, those also that are stuck.
//   - A rank that steps too early must get the error that names the operation, the
//     parameter and both versions, and all others that error as this rank's: its
//     backward pass breaks the group. It goes on as with any other error.
//   - golaunch's exit code must be the first failing rank's, and its report
//     must name the victim; without golaunch every other rank must. Then the
//     flight records must name it, to goddp analyze.
//   - A call whose operands overlap must be refused where it is made, with both
//     address ranges, and that be what every other rank is told.
//   - Nothing may be left: no process that carries the scenario's mark or runs
//     from its folder, no daemon, which need not be found as it holds a lock, and no
//     file in its temporary folder.
//
// Times are two: until the last rank that is not the victim has its error, from
// the call's deadline or, where a failure is noticed without one, from the
// fault; and from the fault to the end of the last process. Deadlines are what is
// promised plus -slack, which is for the machine.
//
// # On GPUs
//
// With -device cuda every rank has a GPU, and what it reduces is there: the last
// reduction of a round in memory from pg.Alloc. NCCL does not notice that ranks
// call different things (skip, resize): sums from then on mean nothing, until
// some rank waits in vain. There a deadline has to pass, and what the ranks
// called is told by their records, in the error. With -detail they compare
// their calls before these run, and it is as on the host.
//
// # Mutants
//
// A check must be able to fail. The campaign builds goddp again with one line wrong, for each
// mutant of a list (mutants.go), and runs scenarios until one fails; that scenario must pass with
// goddp as it is. A mutant that survives fails the campaign, as does one whose function or text
// is not in the source any more.
package main
