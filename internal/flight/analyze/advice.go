package analyze

import "github.com/goddp/goddp/internal/jobenv"

// Advice returns the usual cause of a finding, and what to do about it.
func (k Kind) Advice() string {
	return advice[k]
}

var advice = map[Kind]string{
	Usage: "that call cannot be right whatever the other ranks do, and no rank has begun it: change the line that makes it.",
	Mismatch: "ranks diverged: one took another branch, had fewer batches, or its tensors have another shape. " +
		"Make every rank call the same collectives in the same order; with uneven batches run the training loop within model.Join, " +
		"and other collectives after it, or use Lockstep (package ddp) if the model itself communicates, as SyncBatchNorm does. " + jobenv.DebugVar + "=DETAIL stops each call until all ranks' agree.",
	Awaited: "that rank was in the call, and did not do its part: it was stopped (SIGSTOP, a debugger, a batch system), or starved of its processor; " +
		"or its network was.",
	Dead:      "look at how that process ended, in the launcher's report and its own output: an exception, the out-of-memory killer (SIGKILL), a crash in a library.",
	Replaced:  "the program called exec before its rank was done: start the other program as a child, or close the groups on all ranks before.",
	Suspended: "the process was stopped (SIGSTOP, a debugger, a batch system): continue it, or take it away.",
	Missing:   "that rank did not start, does not answer, or runs on a host that cannot be reached: look at its host, its network interface and its firewall.",
	Left: "that rank ended before the others: it had fewer inputs, or returned early, perhaps because of an error in its own output. " +
		"Run the training loop within model.Join (package ddp), or give all ranks the same number of steps.",
	Behind: "that rank loads data, saves, evaluates or is stuck while the others wait. " +
		"If it takes that long for good reason, raise the timeout (Options.Timeout); else see where it hangs: its output has its goroutines, if the watchdog ended it, and kill -QUIT prints them.",
	Late:      "that rank came too late: see what it did before, or raise the timeout (Options.Timeout).",
	Compute:   "the GPU of that rank has not reached the call: look for a kernel that does not end, a copy, or another process on the same GPU.",
	Circle:    "ranks use their groups in different orders: start the calls of all groups in one order on every rank.",
	Transport: "all ranks are in the call, and no byte moves: look at the network (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME), and at the GPUs' peer access.",
	Failed:    "that rank failed first: its reason says why.",
}
