package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/rootcause"
)

// Patience is how long a call may be in flight if nothing else is wrong with the job.
const Patience = 5 * time.Second

// job is the records of one run, by rank and by group.
type job struct {
	size   int
	ranks  map[int]*rank
	groups []*group // the group of all ranks first
	// broken says that a call failed or is overdue, or that a process ended.
	broken bool
}

// rank is the record of one rank.
type rank struct {
	*flight.Dump
	// failed says that the rank recorded a failure, and that its program had not aborted a group
	// before.
	failed bool
	// gone says that the rank is suspended, has ended or is another program, and that its end is not the effect of
	// a failure that it recorded before.
	gone bool
}

func newRank(d *flight.Dump) *rank {
	r := &rank{Dump: d}
	r.failed = d.Aborted.IsZero() &&
		(d.Reason != "" || slices.ContainsFunc(d.Records, func(r flight.Record) bool { return r.State.State == backend.Failed }))
	r.gone = d.Ending == flight.Suspended || d.Ending != "" && !r.failed || !d.Closed.IsZero()
	return r
}

// endings are the kinds of findings about what has become of a process.
var endings = map[flight.Ending]Kind{flight.Suspended: Suspended, flight.Replaced: Replaced, flight.Succeeded: Left, flight.Died: Dead}

// group is a process group, as its members recorded it.
type group struct {
	name    string
	size    int
	members map[int]*member // by rank within the group
}

// member is one rank of a group.
type member struct {
	flight.Membership
	rank  *rank
	calls map[uint64]flight.Record  // collectives
	pairs map[pairKey]flight.Record // Send and Recv
}

// pairKey identifies a Send or Recv within a member's calls.
type pairKey struct {
	kind backend.Kind
	peer int // within the group
	seq  uint64
}

// newJob takes the records of the latest run, one of each rank. It adds a note to the report for
// each record that it leaves out.
func newJob(dumps []*flight.Dump, report *Report) *job {
	latest := slices.MaxFunc(dumps, func(a, b *flight.Dump) int { return a.Taken.Compare(b.Taken) })
	j := &job{size: latest.WorldSize, ranks: map[int]*rank{}}
	for _, d := range dumps {
		switch other := j.ranks[d.Rank]; {
		case d.Job != latest.Job || d.Generation != latest.Generation || d.WorldSize != latest.WorldSize:
			report.notef("the record of rank %d is left out: it is of another run (job %q, attempt %d, %d ranks) than the latest (job %q, attempt %d, %d ranks)",
				d.Rank, d.Job, d.Generation, d.WorldSize, latest.Job, latest.Generation, latest.WorldSize)
		case other == nil:
			j.ranks[d.Rank] = newRank(d)
		default:
			report.notef("rank %d left two records; the older one is left out", d.Rank)
			if d.Taken.After(other.Taken) {
				j.ranks[d.Rank] = newRank(d)
			}
		}
	}
	groups := map[string]*group{}
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		d := j.ranks[n]
		j.broken = j.broken || d.Ending != "" || d.failed || d.DeadlinePassed || slices.ContainsFunc(d.Records, d.overdue)
		if d.LostGroups > 0 {
			report.notef("rank %d has %d more groups than its record holds", n, d.LostGroups)
		}
		for _, m := range d.Groups {
			g := groups[m.Name]
			if g == nil {
				g = &group{name: m.Name, size: m.Size, members: map[int]*member{}}
				groups[m.Name] = g
			}
			g.members[m.Rank] = newMember(d, m)
		}
	}
	j.groups = slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	return j
}

func newMember(d *rank, m flight.Membership) *member {
	mem := &member{Membership: m, rank: d, calls: map[uint64]flight.Record{}, pairs: map[pairKey]flight.Record{}}
	for _, r := range d.Records {
		switch {
		case r.Group != m.Name, r.Call.Seq == 0:
		case r.Call.Kind == backend.Send || r.Call.Kind == backend.Recv:
			mem.pairs[pairKey{r.Call.Kind, r.Call.Root, r.Call.Seq}] = r
		default:
			mem.calls[r.Call.Seq] = r
		}
	}
	return mem
}

// usageErrors adds a finding for each rank whose program made a call that comm rejected. The other
// findings are then left out, because they are effects.
func (j *job) usageErrors(report *Report) {
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		d := j.ranks[n]
		i := slices.IndexFunc(d.Records, func(r flight.Record) bool { return r.Call.Seq == 0 })
		if i < 0 {
			continue
		}
		var details []string
		if d.Reason != "" && !d.isEffect() {
			details = append(details, d.Reason)
		}
		report.add(Usage, []int{n}, fmt.Sprintf("rank %d made a call that was refused: %s", n, call(d.Dump, d.Records[i])), details...)
	}
}

// missing returns the ranks that left no record.
func (j *job) missing() (ranks []int) {
	for r := range j.size {
		if j.ranks[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// isStuck reports whether a call that is not done is a sign of trouble. If nothing in the job has
// failed, the call must have been in flight for Patience.
func (j *job) isStuck(d *rank, r flight.Record) bool {
	return j.broken || r.InFlight() && d.Taken.Sub(r.Queued) >= Patience
}

// overdue reports whether a call has been in flight for its timeout.
func (d *rank) overdue(r flight.Record) bool {
	return r.InFlight() && r.Timeout > 0 && d.Taken.Sub(r.Queued) >= r.Timeout
}

// ranksOutside returns the ranks that are not known to be in a group.
func (j *job) ranksOutside(group string) (ranks []int) {
	for r := range j.size {
		d := j.ranks[r]
		if d == nil || !slices.ContainsFunc(d.Groups, func(m flight.Membership) bool { return m.Name == group }) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// inTrouble reports whether there is any sign that something is wrong with the job.
func (j *job) inTrouble() bool {
	if j.broken {
		return true
	}
	for _, d := range j.ranks {
		if slices.ContainsFunc(d.Records, func(r flight.Record) bool { return j.isStuck(d, r) }) {
			return true
		}
	}
	return false
}

// global converts a rank of g to its rank in the job. It returns -1 if that is not known.
func (j *job) global(g *group, rank int) int {
	if m := g.members[rank]; m != nil {
		return m.rank.Rank
	}
	if g.size == j.size {
		return rank
	}
	return -1
}

// first returns, among the ranks for which has returns true, the rank that failed first according to the
// evidence; nil if there is none.
func (j *job) first(evidence func(*rank) rootcause.Evidence, has func(*rank) bool) *rank {
	var failed []*rank
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		if has(j.ranks[n]) {
			failed = append(failed, j.ranks[n])
		}
	}
	if len(failed) == 0 {
		return nil
	}
	rootcause.Sort(failed, evidence)
	return failed[0]
}

// reason returns the evidence in the reason that the rank recorded. The method end returns the evidence in the
// end of the rank's process.
func (d *rank) reason() rootcause.Evidence {
	e := rootcause.Evidence{Ranks: []int{d.Rank}, At: d.ReasonAt}
	if d.CausedBy != nil {
		e.CausedBy = []int{*d.CausedBy}
	}
	return e
}

func (d *rank) end() rootcause.Evidence {
	return rootcause.Evidence{Ranks: []int{d.Rank}, At: d.FateAt}
}

func (d *rank) hasReason() bool { return d.Reason != "" }

// isEffect reports whether the rank recorded that another rank's failure made it fail.
func (d *rank) isEffect() bool { return d.CausedBy != nil && *d.CausedBy != d.Rank }
