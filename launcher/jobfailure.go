package launcher

import (
	"slices"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// maxTold is the maximum size in bytes of a node's report of its failures to the other nodes.
const maxTold = 256 << 10

// firstFailure returns the failure to report to the other nodes at once: a worker failed or, if locals is empty,
// this node cannot go on.
func (a *agent) firstFailure(locals []int) failure.Failure {
	if len(locals) == 0 {
		now := time.Now()
		return failure.Failure{Kind: failure.Unable, Why: a.core.err.Error(), Time: now, Exited: now}
	}
	f, _ := failureOf(a.procs[locals[0]]) // describeFailures logs the error
	told := []failure.Failure{f}
	failure.Judge(told, a.start, f.Exited)
	return failure.Bound(told, maxTold)[0]
}

// tellableFailures returns the failures of this node's workers, in the form that the other nodes' reports need.
func (a *agent) tellableFailures() []failure.Failure {
	failures := slices.DeleteFunc(slices.Clone(a.failures), func(f failure.Failure) bool { return f.Stopped })
	return failure.Bound(failures, maxTold)
}

// jobFailure returns the failure of the job: the failures of all nodes, by the clock of the
// rendezvous' host, and the workers of this node that were stopped.
func (a *agent) jobFailure(r *rendezvous.Result) *FailureError {
	var failures []failure.Failure
	if a.attempt != nil {
		failures = slices.Clone(a.failures)
	}
	local, shift := len(failures), time.Duration(0)
	for _, f := range r.Failures {
		i := slices.IndexFunc(failures[:local], func(own failure.Failure) bool { return own.Is(&f) && !own.Stopped })
		if i < 0 {
			failures = append(failures, f)
		} else {
			shift = f.Exited.Sub(failures[i].Exited)
		}
	}
	for i := range failures[:local] {
		failures[i].Shift(shift)
	}
	nodes := 1
	switch {
	case a.attempt != nil:
		nodes = a.round.Nodes
	case a.cfg.Nodes != nil: // this node has not taken part in a round
		nodes = a.cfg.Nodes.Max
	}
	e := newFailureError(a.cfg.Name, nodes, r.Restarts, failures)
	e.reason = r.Reason
	if a.attempt != nil {
		e.records, e.meaning, e.before = a.dumps, a.meaning, a.losses
	}
	return e
}
