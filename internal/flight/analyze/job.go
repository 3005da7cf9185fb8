package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
)

// Patience is how long a call may be in flight in a job that is not in trouble.
const Patience = 5 * time.Second

// job is the records of one run, put in order.
type job struct {
	size   int
	ranks  map[int]*rank
	groups []*group // the job's own first
	// broken: something ended that should not have, or did not in time.
	broken bool
}

// rank is the record of one rank.
type rank struct {
	*flight.Dump
	// failed: it recorded that something failed, which its program did not bring about
	// itself.
	failed bool
	// gone: it can do nothing more, for a reason of its own. A process that
	// recorded a failure before it ended is an echo of another.
	gone bool
}

func newRank(d *flight.Dump) *rank {
	r := &rank{Dump: d}
	r.failed = d.Aborted.IsZero() &&
		(d.Reason != "" || slices.ContainsFunc(d.Records, func(r flight.Record) bool { return r.State.State == backend.Failed }))
	r.gone = d.Fate == suspended || d.Fate != "" && !r.failed || !d.Closed.IsZero()
	return r
}

// suspended is the fate of a process that could go on, and ended of one that came to
// its end.
const (
	suspended = "is suspended"
	ended     = "exited with code 0"
)

// ending is what a process's fate says about it.
func (r *rank) ending() Kind {
	switch r.Fate {
	case suspended:
		return Suspended
	case ended:
		return Left
	}
	return Dead
}

// group is a process group as its members see it.
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

type pairKey struct {
	kind backend.Kind
	peer int // within the group
	seq  uint64
}

// newJob takes the records of the latest run, one of each rank, and notes
// those that it leaves out.
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
		j.broken = j.broken || d.Fate != "" || d.failed || d.DeadlinePassed || slices.ContainsFunc(d.Records, d.overdue)
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

// refusals finds the ranks whose program made a call that comm refused. What the others
// did then is of no interest.
func (j *job) refusals(report *Report) {
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		d := j.ranks[n]
		i := slices.IndexFunc(d.Records, func(r flight.Record) bool { return r.Call.Seq == 0 })
		if i < 0 {
			continue
		}
		var details []string
		if d.Reason != "" && !d.told() {
			details = append(details, d.Reason)
		}
		report.add(Usage, []int{n}, fmt.Sprintf("rank %d made a call that was refused: %s", n, call(d.Dump, d.Records[i])), details...)
	}
}

// missing is the ranks that left no record.
func (j *job) missing() (ranks []int) {
	for r := range j.size {
		if j.ranks[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// lasting tells whether a call that has not ended well says that something is
// wrong: in a job of which nothing ended, it must have lasted for some time.
func (j *job) lasting(d *rank, r flight.Record) bool {
	return j.broken || r.InFlight() && d.Taken.Sub(r.Queued) >= Patience
}

// overdue tells whether a call's deadline has passed.
func (d *rank) overdue(r flight.Record) bool {
	return r.InFlight() && r.Timeout > 0 && d.Taken.Sub(r.Queued) >= r.Timeout
}

// without is the ranks that are not known to be in a group.
func (j *job) without(group string) (ranks []int) {
	for r := range j.size {
		d := j.ranks[r]
		if d == nil || !slices.ContainsFunc(d.Groups, func(m flight.Membership) bool { return m.Name == group }) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// inTrouble tells whether something is wrong with the job at all.
func (j *job) inTrouble() bool {
	if j.broken {
		return true
	}
	for _, d := range j.ranks {
		if slices.ContainsFunc(d.Records, func(r flight.Record) bool { return j.lasting(d, r) }) {
			return true
		}
	}
	return false
}

// global is the rank in the job of a group's rank, -1 if that is not known.
func (j *job) global(g *group, rank int) int {
	if m := g.members[rank]; m != nil {
		return m.rank.Rank
	}
	if g.size == j.size {
		return rank
	}
	return -1
}

// firstReason is the rank that was first to record why a group failed, of those
// that found it themselves if there are any; nil if none did.
func (j *job) firstReason() (first *rank) {
	for _, n := range slices.Sorted(maps.Keys(j.ranks)) {
		d := j.ranks[n]
		switch {
		case d.Reason == "":
		case first == nil, !d.told() && first.told(), d.told() == first.told() && d.ReasonAt.Before(first.ReasonAt):
			first = d
		}
	}
	return first
}

// spokesman finds the ranks whose words a reason has.
var spokesman = regexp.MustCompile(`\brank (\d+)(?::|$)`)

// told tells whether the reason is another rank's.
func (d *rank) told() bool {
	for _, m := range spokesman.FindAllStringSubmatch(d.Reason, -1) {
		if m[1] != strconv.Itoa(d.Rank) {
			return true
		}
	}
	return false
}
