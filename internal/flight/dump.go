package flight

import (
	"time"
)

// Dump is what was recorded of one rank, up to the time at which it was taken.
type Dump struct {
	Version    int       `json:"version"`
	Rank       int       `json:"rank"`
	WorldSize  int       `json:"world_size"`
	LocalRank  int       `json:"local_rank"`
	Generation int       `json:"generation"`
	PID        int       `json:"pid"`
	Host       string    `json:"host"`
	Job        string    `json:"job,omitzero"`
	Run        string    `json:"run,omitzero"`
	Started    time.Time `json:"started"`
	Taken      time.Time `json:"taken"`
	// Closed is when the process left the job in good order; zero if it has not.
	Closed time.Time `json:"closed,omitzero"`
	// Aborted is when the program aborted a group though nothing had failed here;
	// zero if it has not.
	Aborted time.Time `json:"aborted,omitzero"`
	// Fate says what became of the process, in the words of whoever watched
	// it: "was killed by SIGKILL", at FateAt; or "is suspended". It is empty of
	// one that ran, or that was ended because of another.
	Fate   string    `json:"fate,omitzero"`
	FateAt time.Time `json:"fate_at,omitzero"`
	// Reason is why a group failed, at ReasonAt.
	Reason   string    `json:"reason,omitzero"`
	ReasonAt time.Time `json:"reason_at,omitzero"`
	// Awaited is the ranks of the job, the first of them, that were waited for
	// when a deadline passed, if that is the reason.
	Awaited []int `json:"awaited,omitempty"`
	// DeadlinePassed is whether the deadline of a call in flight has passed. It is set by a
	// rank that asks the others why. The deadline may be earlier than the call's timeout: a
	// request to stop leaves the calls in flight less time.
	DeadlinePassed bool `json:"deadline_passed,omitzero"`

	Capacity int    `json:"capacity"` // of the ring
	Recorded uint64 `json:"recorded"` // calls so far; the ring holds the latest
	// LostGroups counts the groups that were not recorded, and LostSites the
	// calls whose site was not, because there were too many.
	LostGroups uint64 `json:"lost_groups,omitzero"`
	LostSites  uint64 `json:"lost_sites,omitzero"`

	Groups  []Membership `json:"groups"`
	Sites   [][]Frame    `json:"sites"`   // where calls come from, innermost frame first
	Records []Record     `json:"records"` // by number
}

// Membership is a process group as its member sees it. The numbers are those
// of its latest collectives; Send and Recv are not among them.
type Membership struct {
	Name      string `json:"name"` // equal on all its ranks
	Rank      int    `json:"rank"` // within the group
	Size      int    `json:"size"`
	Enqueued  uint64 `json:"enqueued"`
	Started   uint64 `json:"started"`
	Completed uint64 `json:"completed"`
}

// Record is one call.
type Record struct {
	Number  uint64        `json:"number"` // in the order of this process, from 1
	Group   string        `json:"group"`
	Call    Call          `json:"call"`
	Name    string        `json:"name,omitzero"` // what the caller calls it
	Bytes   int           `json:"bytes"`         // Count elements; 0 where types are mixed
	State   State         `json:"state"`
	Queued  time.Time     `json:"queued"`
	Running time.Time     `json:"running,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Timeout time.Duration `json:"timeout_ns,omitzero"`
	Site    int           `json:"site,omitzero"` // 1 + index into Dump.Sites; 0: not known
}

func (r Record) String() string {
	if r.Name != "" {
		return r.Call.String() + " " + r.Name
	}
	return r.Call.String()
}

// InFlight tells whether the call had neither ended nor failed.
func (r Record) InFlight() bool { return r.Ended.IsZero() }

// Frames is where a call comes from, innermost frame first; nil if that is not
// known.
func (d *Dump) Frames(r Record) []Frame {
	if r.Site < 1 || r.Site > len(d.Sites) {
		return nil
	}
	return d.Sites[r.Site-1]
}
