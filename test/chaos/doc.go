// Command chaos is a fault-injection campaign. It starts small jobs of several processes, injects a
// fault into each, and checks how the job ends: in the state that the error mode promises, in time, with
// the culprit named and no process left over.
//
//	make chaos                                 the whole campaign, with mutants
//	go run ./test/chaos -n 67 -mutants=false   each fault in each mode once
//	go run ./test/chaos -only 17 -v            one scenario, with its output
//	test/gpu_failures.sh                       a part of it on two GPUs, without Go
//
// For a machine without Go, build everything into a new folder first:
//
//	go run ./test/chaos -build build/chaos && go build -o build/chaos/ ./test/chaos
//	build/chaos/chaos -bin build/chaos -j 8     there
//
// The command prints a line for each scenario that failed, with the command that runs that scenario
// again, and then tables. Its exit code is 1 if a scenario failed or a mutant survived. It needs Linux,
// because it reads /proc. It skips the full-disk scenarios if it may not mount a file system, and the
// stranger scenarios if it may not change its user.
//
// # Scenarios
//
// Scenario k is a function of the seed and k: a fault in an error mode, and then at random who starts
// the job, how many ranks it has, how they are connected, which rank is the victim and before which
// collective the fault comes. In mode async it is also random whether the program leaves after an
// error, or is stuck, so that comm must end it.
//
// A job is started by golaunch; by the campaign itself, as a scheduler would, with the store in rank
// 0 ("alone"); or by the campaign with the store in a process of its own ("separate store").
//
//	kill          the victim gets SIGKILL
//	stop          the victim gets SIGSTOP, and SIGCONT when the others have acted, unless golaunch
//	              ends it
//	delay         the victim comes later than the timeout
//	hiccup        the victim comes late, but before the timeout
//	skip          the victim leaves a collective out
//	resize        the victim gives a tensor of twice the size
//	overlap       the victim makes a call whose operands overlap
//	exit          the victim exits with code 7
//	socket        one of the victim's connections breaks
//	full disk     the folder for flight records is full; then comes kill or stop
//	store         the store is killed or stopped; then comes kill, stop or nothing
//	garbage       every listener of the job, TCP or unix, gets garbage, from the job's start on
//	launcher      golaunch is killed
//	stale graph   the victim steps a parameter between a forward pass and its backward pass
//	reaper        the process between golaunch and the ranks is killed
//	daemon kinds  every rank starts a daemon that hides in some way; then the job ends, or a rank,
//	              golaunch or the reaper is killed
//	suspend all   every process of the job gets SIGSTOP, and after more than the timeout SIGCONT, one
//	              after the other
//	stranger      another user sends forged failures to every listener, from the job's start on
//	two jobs      a second job is started with the same MASTER_ADDR and MASTER_PORT
//
// The jobs of the following faults survive them: golaunch has --on-failure. Their worker is test/survive/survivor. The
// victim is in a random phase of a step.
//
//	shrink        the victim gets SIGKILL
//	replace       the same, and golaunch starts another worker in its place
//	double fault  two workers get SIGKILL, at once, or the second one when the others regroup
//	source dies   after the victim, the worker gets SIGKILL that sends the state to the victim's replacement
//	stopped and continued
//	              the victim gets SIGSTOP, and SIGCONT before --silence-limit, or when golaunch has killed it
//
// # The judge
//
// The judge checks what the manuals promise, and shares no code with goddp, except that it uses goddp for undisturbed
// runs. The workers are a program of the campaign (test/chaos/worker) that uses goddp as any program does.
//
//   - Some faults must not disturb the job: hiccup, garbage, a stranger, a second job, a lost store, a
//     suspension of the whole job, and in mode none a late rank. All ranks exit with 0, and all sums are
//     right. No listener answers the stranger. All ranks of the second job fail, with an error that
//     says how the jobs differ.
//   - In blocking wait, if all ranks live, each rank gets an error, makes another group together with
//     the others in the same processes, and finishes. If a rank is dead, the others get an error, and
//     a second one when making the new group times out.
//   - In clean-up only, the processes live on, and calls on the failed group fail.
//   - In async, the processes end, also those that are stuck.
//   - A rank that steps too early gets the error that names the operation, the parameter and both
//     versions. Its backward pass breaks the group, so the other ranks get that error as this rank's.
//   - golaunch's exit code is that of the first rank that failed, and its report names the victim.
//     Without golaunch, the error of every other rank names the victim. The flight records name it too,
//     as `goddp analyze` reads them.
//   - A call whose operands overlap fails where it is made, with both address ranges. Every other rank
//     gets the same error.
//   - A job that survives goes on without the workers that it loses, or with others in their places. golaunch names
//     each of them, ends with exit code 0, and may not restart the others. The replicas are equal after each change
//     of the members, and the losses and the last state are those of an undisturbed run with the same members at each
//     step. A worker that is suspended for a short time is not lost.
//   - Nothing is left over: no process that carries the scenario's mark or runs from its folder, no
//     daemon that holds its lock, no file in the temporary folder.
//
// The judge measures two times. One ends when the last rank other than the victim has its error; it
// begins at the call's deadline, or at the fault if ranks notice the fault without a deadline. The
// other is from the fault to the end of the last process; it may exceed what is promised by -slack.
//
// # On GPUs
//
// With -device cuda every rank has a GPU, and reduces tensors in its memory. The last reduction of a
// round is in memory from pg.Alloc. NCCL does not detect that ranks make different calls (skip, resize):
// the sums are wrong from then on, until a rank waits for a call that no peer makes. So a deadline has
// to pass; the error then says what the ranks' records show. With -detail the ranks compare their calls
// before the calls run, and fail as on the CPU.
//
// # Mutants
//
// Mutants show that the checks can fail. For each mutant in a list (mutants.go), the campaign builds
// goddp with one wrong line and runs scenarios until one fails; that scenario must pass with the
// unchanged goddp. A mutant that survives fails the campaign, as does one whose function or text is not
// in the source any more.
package main
