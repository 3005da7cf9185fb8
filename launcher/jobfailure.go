package launcher

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// The bounds on what a node tells the others about its failures.
const (
	maxFailures   = 16
	maxDetailText = 16 << 10  // bytes of an error message, of a stack, of all lines of stderr
	maxDetail     = 256 << 10 // bytes of all failures, unless one alone takes more
)

// tellFailure reports to the rendezvous that a worker failed, or without locals, that this
// node cannot go on.
func (a *agent) tellFailure(locals []int) {
	f := rendezvous.Failure{At: time.Now(), Fatal: len(locals) == 0}
	if f.Fatal {
		f.What = a.core.err.Error()
	} else {
		p := a.procs[locals[0]]
		f.At, f.Rank, f.What = p.end.At, p.Rank, fmt.Sprintf("rank %d %s%s", p.Rank, p.end.Status, p.blame())
	}
	a.rendezvous.Failed(f)
}

// reportedFailures returns what the other nodes' reports need to know of this node's workers
// that failed.
func (a *agent) reportedFailures() []rendezvous.Failure {
	e := a.attempt.failure
	if e == nil {
		return nil
	}
	details := []Failure{e.Root.bounded()}
	for _, f := range e.Others[:min(len(e.Others), maxFailures-1)] {
		details = append(details, f.bounded())
	}
	text := mustMarshal(details)
	for len(text) > maxDetail && len(details) > 1 { // JSON may take six bytes for one
		details = details[:len(details)-1]
		text = mustMarshal(details)
	}
	return []rendezvous.Failure{{At: e.Root.Time, Rank: e.Root.Rank, What: fmt.Sprintf("rank %d %s", e.Root.Rank, e.Root.Status), Detail: text}}
}

// bounded returns a copy of a failure of bounded size.
func (f Failure) bounded() Failure {
	if f.ErrorFile != nil {
		file := *f.ErrorFile
		file.Message, file.Callstack = bound(file.Message), bound(file.Callstack)
		f.ErrorFile = &file
	}
	f.Crash, f.Stderr = boundLines(f.Crash), boundLines(f.Stderr)
	return f
}

func bound(text string) string { return text[:min(len(text), maxDetailText)] }

func boundLines(lines []string) []string {
	if len(lines) == 0 {
		return nil
	}
	return strings.Split(bound(strings.Join(lines, "\n")), "\n")
}

// jobFailure returns the failure of the job: the failures of all nodes, by the clock of the
// rendezvous' host, and the workers of this node that were stopped.
func (a *agent) jobFailure(r *rendezvous.Result) *FailureError {
	var failures []Failure
	if a.attempt != nil && a.attempt.failure == nil {
		failures = a.attempt.failures // stopped workers
	}
	for _, f := range r.Failures {
		local := a.attempt != nil && f.Node == a.round.Node && !f.Lost && !f.Fatal && a.attempt.failure != nil
		switch details := decodeFailures(&f); {
		case local:
			shift := f.At.Sub(a.attempt.failure.Root.Time)
			for _, f := range a.attempt.failures {
				failures = append(failures, f.shifted(shift))
			}
		case len(details) > 0:
			failures = append(failures, details...)
		default:
			lost := Failure{Worker: Worker{Rank: f.FirstRank}, Node: f.Node, Host: f.Host, Lost: f.What, Time: f.At, Exited: f.At, ranks: f.Workers}
			if f.Lost { // its workers died with it
				lost.Time = f.At.Add(-crashCredit)
			}
			failures = append(failures, lost)
		}
	}
	nodes := 1
	switch {
	case a.attempt != nil:
		nodes = a.round.Nodes
	case a.cfg.Nodes != nil: // this node took part in no round
		nodes = a.cfg.Nodes.Max
	}
	e := newFailureError(a.cfg.Name, nodes, r.Restarts, failures)
	e.Reason = r.Reason
	if a.attempt != nil {
		e.Records = a.dumps
		if a.attempt.failure != nil {
			e.Meaning = a.attempt.failure.Meaning
		}
	}
	return e
}

// decodeFailures returns the failures of another node's workers. It returns none if the node
// could not tell.
func decodeFailures(f *rendezvous.Failure) []Failure {
	var details []Failure
	if len(f.Detail) == 0 || json.Unmarshal(f.Detail, &details) != nil || len(details) == 0 {
		return nil
	}
	shift := f.At.Sub(details[0].Time)
	for i := range details {
		details[i] = details[i].shifted(shift)
	}
	return details
}

// isThat reports whether a failure is the one that the rendezvous speaks of.
func (f *Failure) isThat(of *rendezvous.Failure) bool {
	return of != nil && f.Node == of.Node && f.Rank == of.Rank && (f.Lost != "") == of.Lost
}

// shifted returns a copy of a failure whose times are by another clock, which is ahead of the
// failure's by a duration.
func (f Failure) shifted(by time.Duration) Failure {
	f.Time, f.Exited = f.Time.Add(by), f.Exited.Add(by)
	return f
}
