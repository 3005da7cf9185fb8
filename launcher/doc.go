// Package launcher starts the workers of a distributed job on this machine,
// watches them, and says what went wrong. It is what the golaunch command is
// made of, and what tests use to start real worker processes.
//
//	result, err := launcher.Run(ctx, &launcher.Config{
//		Args:    []string{"./train", "--epochs", "3"},
//		Workers: 4,
//	})
//
// # One attempt
//
// Run is the agent of one node. It joins a round of the rendezvous (package
// [github.com/goddp/goddp/internal/rendezvous]), which numbers the ranks and
// opens the store; starts Workers processes with torchrun's environment (RANK,
// LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...); and waits. A worker group is all
// or nothing:
//
//   - When every worker has exited with 0, the job has succeeded.
//   - When one fails, the others are stopped at once: SIGTERM, SIGCONT in case
//     they are suspended, and after ShutdownTimeout SIGKILL. Then either the
//     next attempt begins, as long as MaxRestarts allows one, with a new round
//     and a fresh store, or Run returns a [*FailureError].
//   - When a signal arrives on Config.Signals it is forwarded to the workers
//     and the job ends as above, without another attempt, in a [*SignalError].
//     A second SIGINT or SIGTERM kills at once. A cancelled context is a
//     SIGTERM.
//   - When a worker got a signal of its own, and its ranks agreed to stop because of it
//     (comm.ProcessGroup.AcceptStop), the job ends in a [*SignalError] as well. The others
//     have ShutdownTimeout to end by themselves.
//
// Workers tell whether they take a signal for a request to stop in the file that
// GODDP_STOP_FILE names. When a failure stops the attempt, the file is removed before the
// workers are signalled, so that they end at once.
//
// A job has an id and a secret that its processes prove to each other that they
// have. Run makes both: the secret is in a file of the run's folder, which
// GODDP_TOKEN_FILE names to the workers, until the job is over. A secret that the
// user names in that variable is taken instead.
//
// What decides all this is a pure state machine (core.go) whose behaviour is
// written down as text scenarios under testdata. Nothing polls while the job
// runs: exits, signals and the one timer are events.
//
// # Who failed first
//
// When a rank dies its peers notice within milliseconds and fail as well, so
// the report has to tell the cause from its echoes. Exits are observed in the
// order in which the kernel reports them, and a failure is dated by the worker's
// own error file if it wrote one, else by its observed exit; see [Failure] for
// the exact rule. A worker that golaunch stopped itself is never called failed.
//
// # What each rank was doing
//
// On Linux every worker inherits memory for its flight recorder (package
// [github.com/goddp/goddp/internal/flight]), which this process reads when the
// attempt fails, before it stops the others: so the records of workers that
// were killed, are suspended, or are stuck are there as well. They go into
// attempt_<n>/flight in the run's folder, which is kept then, or to where
// GODDP_FLIGHT_DIR says, unless it is a golaunch around this one that says so of its
// own accord; a worker that wrote its own record keeps it. The report names the
// folder. Programs that record nothing do not notice.
//
// # No orphans
//
// The workers are children not of the agent but of its reaper, a process that the agent
// starts for the job. The agent sends it, over a socket, each worker's command with the
// ends of its pipes; the reaper starts the worker as the leader of a process group,
// signals that group, waits for the worker, and reports the exits in the order in which
// the kernel reported them.
//
// On Linux the reaper is a child subreaper: a process below it whose parent ends becomes
// its child. So everything that a worker started, whatever it did to its session, its
// group, its environment or its main thread, is below the reaper, and is found by
// walking down from there (/proc/PID/task/TID/children). At the end of an attempt the
// reaper kills what it finds until the kernel says that it has no children; while the
// attempt is being stopped it asks with SIGTERM first. Children are waited for by number.
//
//   - When the agent dies, the connection ends: the reaper kills all below it, removes
//     the job's temporary folders, and exits. It knows the folders before they are made.
//   - When the reaper dies, its workers die of their parent-death signal. In a process
//     that says [Config.Dedicated], as golaunch does, the rest becomes the agent's own
//     children, and the agent kills them. In both cases Run returns the reaper's end as
//     its error, without another attempt.
//   - When both are killed at one moment, workers die of the signal, but what they
//     started lives, and the temporary folders stay. Only a cgroup could end those
//     processes; golaunch makes none.
//
// A job in a container, a batch system's step or a systemd scope is in such a cgroup
// already. A process that forks faster than the reaper can look may delay the end of an
// attempt; what lives 5 s after SIGKILL is named and left behind.
//
// The reaper is this executable started again, so it exists only in programs whose main
// (or TestMain) calls [ReaperMain] first. In others the reaper is a goroutine, and such a
// process is no subreaper, since that would give it the orphans of children that it
// has of its own: an attempt ends with the process groups of its workers, and
// when the program is killed the workers die of the parent-death signal alone. Other
// systems than Linux have the reaper process, but no subreapers and no parent-death
// signals: there a killed agent or reaper takes the process groups with it, and what
// left them lives.
//
// # Output
//
// Workers write into pipes, and their lines reach Config.Stdout and
// Config.Stderr whole, each after a prefix that names the rank. A carriage
// return ends a line too; on a terminal the next line takes its place, so that
// progress bars move. Files asked for by Redirects and Tee hold the bytes as they
// were written. Waiting for a worker is waiting for its process: a grandchild that
// keeps the pipe open delays nothing.
//
// When a Go program panics, the console shows the message and holds the stack back. The
// report of the failure then shows the stack of the root cause, the program's own frames
// first. A stack that no report shows is shown in full. Files hold all of it.
//
// Workers wait while nobody reads what Stdout or Stderr has taken, as they would
// for a terminal. Signals and timeouts work meanwhile, and once the workers have
// ended, the rest of their output gets 10 minutes, or until SIGINT or SIGTERM comes once more.
// A reader that ends, as head does, ends no job.
package launcher
