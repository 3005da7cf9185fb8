// Package launcher starts the workers of a distributed job on this machine, watches them, and reports which worker
// failed first, and why. In a job of several nodes, the launchers of all nodes do this together. The golaunch command
// is a thin layer above the package. Tests use it to start real worker processes.
//
//	result, err := launcher.Run(ctx, &launcher.Config{
//		Args:    []string{"./train", "--epochs", "3"},
//		Workers: 4,
//	})
//
// # One attempt
//
// Run is the agent of one node. It joins a round of the rendezvous (package
// [github.com/goddp/goddp/launcher/internal/rendezvous]), which numbers the ranks and opens the
// store. It starts Workers processes with torchrun's environment (RANK, LOCAL_RANK,
// WORLD_SIZE, MASTER_ADDR, ...), and waits for them:
//
//   - When every worker has exited with code 0, the job has succeeded.
//   - When one worker fails, Run stops the others at once. It sends SIGTERM, then SIGCONT
//     in case they are suspended, and SIGKILL after ShutdownTimeout. If MaxRestarts allows
//     another attempt, it begins with a new round and an empty store. Otherwise Run returns
//     a [*FailureError].
//   - When a signal arrives on Config.Signals, Run forwards it to the workers and stops
//     them as above, without another attempt on this node. Run returns a [*SignalError]. A second
//     SIGINT or SIGTERM kills the workers at once, unless it is the same signal within a second
//     of the first. The end of Run's context acts like a SIGTERM.
//   - When a worker itself received a signal, and its ranks agreed to stop because of it
//     (comm.ProcessGroup.AcceptStop), Run also returns a [*SignalError]. The other workers
//     have ShutdownTimeout to end by themselves.
//
// A worker writes into the file that GODDP_STOP_FILE names whether it takes a signal as a
// request to stop after the current step. When a failure stops the attempt, Run removes
// this file before it signals the workers, so that they end at once.
//
// A job has an id and a secret, by which its processes authenticate each other. For a job of one node, Run generates
// both. The secret is in a file of the run's folder until the job is over, and GODDP_TOKEN_FILE names that file to the
// workers. If the user sets this variable, the job uses the user's secret.
//
// A pure state machine (core.go) makes all these decisions. Text scenarios under testdata
// describe its behaviour. Nothing polls while the job runs: exits, signals and one timer
// are events.
//
// # Surviving a lost worker
//
// With Config.OnFailure Shrink or Replace, the loss of a worker need not end the attempt. The coordinator of the round,
// in the process of the rendezvous' host, knows whether the program has declared that it can go on (package
// [github.com/goddp/goddp/elastic]), and which workers train together: an epoch. When a worker has failed and the
// reaper has waited for it, the agent asks the host of the rendezvous, which asks the coordinator:
//
//   - If enough workers are left, the attempt goes on. With Replace, the host orders the start of a new worker with the
//     same RANK and LOCAL_RANK. Each worker has a number for life, in GODDP_WORKER. A new one has GODDP_JOINS.
//   - Otherwise the attempt fails, as described above.
//
// On several nodes, the host tells each agent what concerns its workers, and all agents which workers train together.
// A lost node is the loss of its workers. They are dead for certain after a lease: an agent that has not heard of the
// host for three heartbeats kills its workers, and the host waits for twice that time. With Replace, a node that joins
// takes the place of a lost one. A node that receives a signal asks the host, which lets its workers leave, or has
// those of all nodes stop if all nodes leave.
//
// The coordinator may order that a worker is killed, because it is suspended for example. An epoch that a worker has
// left begins only when the worker's process is gone, so a killed worker is lost like any other.
//
// # Several nodes
//
// If Config.Nodes is set, the agents of several nodes take part in one rendezvous, which one of
// them hosts. The host decides for all nodes when a round begins, with which nodes, when it ends,
// whether another follows, and how the job ends. Unless the workers survive, as above:
//
//   - When a worker fails on any node, the agents of all nodes stop their workers. MaxRestarts
//     counts the failures of the whole job.
//   - When a node is lost, or leaves because of a signal or because its reaper was killed, the others
//     go on without it if at least Nodes.Min are left. If the node that hosts the rendezvous leaves,
//     they go on if an election in etcd can replace it. This does not count as a restart.
//   - When a node joins and fewer than Nodes.Max take part, the workers get SIGTERM while all of
//     them live, so that they can finish their step and save. A round with the new node follows.
//     This does not count as a restart.
//   - When the job ends by a failure, Run returns the same root cause on every node. The agents
//     exchange what they know of their failures; the times are by the host's clock.
//
// The nodes prove to each other that they know the job's secret, so the user must give one
// ([ErrNoToken]), and all that the agents send each other is encrypted. The workers of goddp reach the
// store and the coordinator through their own agent, on the loopback interface. Other programs, such
// as PyTorch's, find node 0's address in MASTER_ADDR, and rank 0 hosts their store there.
//
// # Which worker failed first
//
// When a rank dies, its peers notice within milliseconds and fail as well. The report must distinguish the cause from
// its effects; package [github.com/goddp/goddp/internal/rootcause] does so. A failure whose error file blames another
// failed rank is an effect. Among the other failures, the earliest is the root cause. The time of a failure is the
// time in the worker's error file, or else the time of its exit; package failure states the exact rule. A worker that
// golaunch stopped does not count as failed. The time of a failure on another node is translated to the clock of the
// rendezvous' host.
//
// # What each rank was doing
//
// On Linux every worker inherits memory for its flight recorder (package [github.com/goddp/goddp/internal/flight]).
// The agent reads the recorder when the attempt fails, on this node or on another, before it stops the other workers.
// So even workers that were killed, are suspended or are stuck have records. The agent writes them to GODDP_FLIGHT_DIR
// if the user sets it, else to attempt_<n>/flight in the run's folder, which it then keeps. It does not replace a
// record that a worker wrote itself. The report names the folder. Programs that record nothing are not affected.
//
// # No orphans
//
// The workers are not children of the agent. They are children of its reaper, a process
// that the agent starts for the job. The agent sends the reaper each worker's command and
// the ends of its pipes over a socket. The reaper starts the worker as the leader of a
// process group, signals this group, waits for the worker, and reports the exits in the
// order in which the kernel reported them.
//
// On Linux the reaper is a child subreaper: a process below it whose parent ends becomes
// its child. So every process that a worker started stays below the reaper, whatever it
// did to its session, group, environment or main thread. The reaper finds these processes
// by walking down the process tree (/proc/PID/task/TID/children). At the end of an attempt
// the reaper kills them until the kernel says that it has no more children. If the attempt
// is being stopped, the reaper first sends SIGTERM.
//
//   - When the agent dies, the reaper's connection ends. The reaper kills all processes
//     below it, removes the job's temporary folders, and exits. The agent names these
//     folders to the reaper before it makes them.
//   - When the reaper dies, the workers die by their parent-death signal. If
//     [Config.Dedicated] is set, as in golaunch, the other processes become children of
//     the agent, and the agent kills them. In both cases Run returns an error that says how
//     the reaper ended, without another attempt. In a job of several nodes this node leaves
//     at once, and the others go on if at least Nodes.Min are left.
//   - When both are killed at the same moment, the workers die by the parent-death signal.
//     Processes that the workers started live on, and the temporary folders stay. Only a
//     cgroup could end these processes; golaunch makes none.
//
// A job in a container, a batch system's step or a systemd scope is in such a cgroup
// already. A process that forks faster than the reaper can walk the tree may delay the end
// of an attempt. The agent names processes that live 5 s after SIGKILL and leaves them.
//
// The reaper process runs this executable again. So it exists only in programs whose main (or
// TestMain) calls [ReaperMain] first. In other programs the reaper is a goroutine, and the
// process is not a subreaper, because it would receive orphans of its own children too. In such
// a program an attempt ends with the process groups of its workers. If the program is killed,
// only the workers die, by the parent-death signal. Systems other than Linux have the reaper
// process, but neither subreapers nor parent-death signals. On these systems the process
// groups end with the agent or the reaper, and processes that left the groups live on.
//
// # Output
//
// Workers write into pipes. Their lines reach Config.Stdout and Config.Stderr as whole
// lines, each after a prefix that names the rank. A carriage return ends a line too; on a
// terminal the next line replaces this one, so that progress bars move. The files of
// Redirects and Tee hold the bytes as they were written. Run waits for worker processes,
// not for their pipes: a grandchild that keeps a pipe open delays nothing.
//
// With JSONLines every line on the console is a JSON object. This includes the agent's own lines and the report of a
// failure.
//
// When a Go program panics, the console shows the message and holds the stack back. The
// report of the failure then shows the stack of the root cause, the program's own frames
// first. A stack that no report shows is shown in full. Files hold all of it.
//
// A blocked reader of Stdout or Stderr, such as a paused terminal or pager, does not block the job (package
// [github.com/goddp/goddp/internal/printer]). While a reader reads, workers that write faster wait for it. If it reads
// nothing for 2 s and 1 MiB is buffered, further lines are dropped until it reads again. A line then says how many.
// Files get all lines. At the end of the job Run waits for the rest of the output to be read, but gives up if nothing
// is read for ShutdownTimeout, or for 1 s after a signal. If Stdout and Stderr are different files, one that is
// blocked does not delay the other.
//
// A reader that exits, such as head, does not end the job. If output is lost for another reason, such as a full disk,
// the job continues; if it succeeds, Run returns that error.
//
// # The page
//
// With Config.Page or Config.RunDir, Run serves or keeps a page that shows the job: what the workers report (package
// [github.com/goddp/goddp/internal/telemetry]), their states, their output, and the lines of the agent. Each worker then has one
// more descriptor. Package [github.com/goddp/goddp/internal/page] bounds what this costs. If the page cannot be served, Run
// returns an error before it starts a worker.
//
// Of several nodes, the one that hosts the rendezvous has the page, and keeps the run, if its Config says so. The agents of
// the others send it what they see, and need no setting. They drop what the connection does not take in time. A node that
// becomes the host later, by an election, begins a page of its own. If it cannot, the job goes on without.
package launcher
