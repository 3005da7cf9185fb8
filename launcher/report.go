package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/goddp/goddp/internal/flight/analyze"
	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/launcher/internal/failure"
)

const (
	frameHeavy = "============================================================"
	frameLight = "------------------------------------------------------------"
	reportTime = "2006-01-02_15:04:05.000"
)

// mostStopped is the largest number of stopped workers that have a line each. More have a line for each way to end.
const mostStopped = 16

// Report returns the report of the failure for the user. Its frame and the words "FAILED"
// and "Root Cause (first observed failure):" are torchrun's, so that tools that search
// logs for them find them here too.
func (e *FailureError) Report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s FAILED\n%s\n", frameHeavy, e.program, frameLight)
	if e.showsMeaning() {
		fmt.Fprintf(&b, "%s%s\n", e.meaning, frameLight)
	}
	b.WriteString("Root Cause (first observed failure):\n")
	if culprits := e.culprits(); culprits != "" {
		fmt.Fprintf(&b, "  %-10s: %s, see above; this is the first that failed for it\n", "culprit", culprits)
	}
	e.writeRoot(&b)
	if len(e.others) > 0 {
		fmt.Fprintf(&b, "%s\nOther failures (later, often effects of the first):\n", frameLight)
		for _, f := range e.others {
			if f.Kind != failure.Worker {
				fmt.Fprintf(&b, "  node %d (%s): %s\n", f.Node, f.Host, f.Why)
				continue
			}
			fmt.Fprintf(&b, "  rank %d (%slocal_rank: %d, pid: %d) %s", f.Rank, e.where(&f), f.LocalRank, f.PID, f.Status)
			if f.ErrorFile != nil && e.root.ErrorFile != nil && f.ErrorFile.Message == e.root.ErrorFile.Message {
				b.WriteString(" with the same error")
			} else if why := reason(&f); why != "" {
				fmt.Fprintf(&b, ": %s", why)
			}
			if stack := stackOf(&f); stack != nil {
				fmt.Fprintf(&b, ", in %s", strings.TrimSpace(stack[1]))
			}
			b.WriteByte('\n')
		}
	}
	if len(e.stopped) > 0 {
		fmt.Fprintf(&b, "%s\nStopped by golaunch:\n", frameLight)
		if len(e.stopped) <= mostStopped {
			for _, f := range e.stopped {
				fmt.Fprintf(&b, "  rank %d (local_rank: %d, pid: %d) %s\n", f.Rank, f.LocalRank, f.PID, f.Status)
			}
		} else {
			ranks := map[string][]int{}
			for _, f := range e.stopped {
				ranks[f.Status.String()] = append(ranks[f.Status.String()], f.Rank)
			}
			for _, status := range slices.Sorted(maps.Keys(ranks)) {
				fmt.Fprintf(&b, "  %s: %s\n", status, rootcause.Ranks(ranks[status]))
			}
		}
	}
	if len(e.before) > 0 {
		fmt.Fprintf(&b, "%s\nThe last workers lost before, without which the others went on:\n", frameLight)
		for _, f := range e.before {
			fmt.Fprintf(&b, "  rank %d (local_rank: %d, pid: %d) %s at %s\n", f.Rank, f.LocalRank, f.PID, f.Status, f.Exited.Format(reportTime))
		}
	}
	if e.records != "" {
		ranks := "each rank"
		if e.nodes > 1 {
			ranks = "each rank of this node"
		}
		fmt.Fprintf(&b, "%s\nWhat %s was doing: goddp analyze %s\n", frameLight, ranks, e.records)
	}
	if e.reason != "" {
		fmt.Fprintf(&b, "%s\nNo restart: %s\n", frameLight, e.reason)
	}
	fmt.Fprintln(&b, frameHeavy)
	return b.String()
}

// showsMeaning reports whether the analysis of the records belongs in the report. It returns false
// if the analysis only says that processes ended, because the report already shows their failures.
func (e *FailureError) showsMeaning() bool {
	if e.meaning == nil || len(e.meaning.Findings) == 0 {
		return false
	}
	f := e.meaning.Findings[0]
	isExplained := func(rank int) bool {
		return rank == e.root.Rank || slices.ContainsFunc(e.others, func(o failure.Failure) bool { return o.Rank == rank && reason(&o) != "" })
	}
	return f.Kind != analyze.Dead || slices.ContainsFunc(f.Ranks, func(rank int) bool { return !isExplained(rank) })
}

// culprits returns, as text, the ranks that caused the failure according to the records. It returns
// "" if the root cause is one of them. Otherwise the root cause may have been waiting for them when
// it failed.
func (e *FailureError) culprits() string {
	if !e.showsMeaning() {
		return ""
	}
	ranks := e.meaning.Findings[0].Ranks
	if len(ranks) == 0 || slices.Contains(ranks, e.root.Rank) {
		return ""
	}
	return rootcause.Ranks(ranks)
}

// culpritRanks returns the ranks that caused the failure.
func (e *FailureError) culpritRanks() []int {
	switch {
	case e.culprits() != "":
		return e.meaning.Findings[0].Ranks
	case e.root.Kind == failure.Worker:
		return []int{e.root.Rank}
	}
	var ranks []int
	for i := range e.root.Ranks {
		ranks = append(ranks, e.root.Rank+i)
	}
	return ranks
}

func (e *FailureError) writeRoot(b *strings.Builder) {
	f := &e.root
	field := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-10s: %s\n", name, fmt.Sprintf(format, args...))
	}
	field("time", "%s", f.When().Format(reportTime))
	if e.nodes > 1 {
		field("node", "%d", f.Node)
	}
	field("host", "%s", f.Host)
	if f.Kind != failure.Worker {
		switch f.Ranks {
		case 0:
		case 1:
			field("rank", "%d", f.Rank)
		default:
			field("ranks", "%d to %d", f.Rank, f.Rank+f.Ranks-1)
		}
		field("error", "%s", f.Why)
		return
	}
	field("rank", "%d (local_rank: %d)", f.Rank, f.LocalRank)
	field("exitcode", "%s", exitcode(f))
	if e.restarts > 0 {
		field("restarts", "%d before this attempt", e.restarts)
	}
	if why := hint(f); why != "" {
		field("hint", "%s", why)
	}
	if f.ErrorFile != nil {
		field("error", "%s", indentRest(f.ErrorFile.Message))
		if f.ErrorFile.Callstack != "" && parseStack(f.ErrorFile.Callstack) == nil {
			field("callstack", "%s", indentRest(f.ErrorFile.Callstack))
		}
	}
	stack := stackOf(f)
	switch {
	case len(f.Crash) > 0 && f.ErrorFile != nil && f.ErrorFile.Callstack != "" && panics(f) == 1: // the message is above
		writeLines(b, stack)
	case len(f.Crash) > 0 && stack != nil:
		b.WriteString("  its Go runtime crashed:\n")
		writeLines(b, crashMessage(f))
		writeLines(b, stack)
	case len(f.Crash) > 0:
		b.WriteString("  its Go runtime crashed:\n")
		writeLines(b, f.Crash[:min(tailLines, len(f.Crash))])
	case len(f.Stderr) > 0:
		b.WriteString("  from its stderr:\n")
		writeLines(b, f.Stderr)
	default:
		b.WriteString("  it wrote nothing to stderr\n")
	}
}

// exitcode returns the exit status in torchrun's notation, in which a signal is a negative
// number, and the signal's name.
func exitcode(f *failure.Failure) string {
	if sig := f.Status.Signal; sig != 0 {
		return fmt.Sprintf("%d (pid: %d), killed by %s", -int(sig), f.PID, failure.SignalName(sig))
	}
	return fmt.Sprintf("%d (pid: %d)", f.Status.Code, f.PID)
}

// hint explains an exit status that may mislead, or returns "".
func hint(f *failure.Failure) string {
	switch {
	case f.WasExiting:
		return "golaunch stopped it while it was still exiting after the error"
	case f.Why != "":
		return "golaunch killed it: " + f.Why
	case f.Status.Signal == syscall.SIGKILL:
		return "golaunch did not send it; without a kill -9, look for the out-of-memory killer in the kernel's log"
	case f.Status.Code == 2 && len(f.Crash) > 0 && !strings.HasPrefix(f.Crash[0], "panic: "):
		if most := addressSpace(); most < 1<<40 {
			return fmt.Sprintf("its address space is limited to %d MiB (ulimit -v), of which Go and CUDA reserve more than they use", most>>20)
		}
		return "code 2 is the Go runtime's after a fatal error, also one in a C thread"
	}
	return ""
}

// panics returns the number of panics in the crash report. It holds several if a deferred
// function panicked too.
func panics(f *failure.Failure) (n int) {
	for _, line := range f.Crash {
		if strings.HasPrefix(strings.TrimSpace(line), "panic: ") {
			n++
		}
	}
	return n
}

// crashMessage returns the lines of the crash before the stack of the first goroutine.
func crashMessage(f *failure.Failure) []string {
	end := slices.IndexFunc(f.Crash, isGoroutineHeader)
	for end > 0 && f.Crash[end-1] == "" {
		end--
	}
	return f.Crash[:max(end, 0)]
}

func indentRest(text string) string {
	return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

func writeLines(b *strings.Builder, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(b, "  | %s\n", line)
	}
}
