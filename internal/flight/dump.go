package flight

import (
	"time"
)

// Dump is the record of one rank, at the time Taken.
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
	// Closed is when the process left the job without a failure. It is zero until then.
	Closed time.Time `json:"closed,omitzero"`
	// Aborted is when the program aborted a group although no call had failed on this rank. It
	// is zero if the program did not.
	Aborted time.Time `json:"aborted,omitzero"`
	// Ending says how the process ended. Fate says it in words, such as "was killed by SIGKILL".
	// FateAt is when the launcher saw the process end.
	Ending Ending    `json:"ending,omitzero"`
	Fate   string    `json:"fate,omitzero"`
	FateAt time.Time `json:"fate_at,omitzero"`
	// Reason is why a group failed, at ReasonAt. CausedBy is the rank whose failure made this one
	// fail. It is nil if the failure originated in this rank.
	Reason   string    `json:"reason,omitzero"`
	ReasonAt time.Time `json:"reason_at,omitzero"`
	CausedBy *int      `json:"caused_by,omitempty"`
	// Awaited is set if the deadline of a call passed. It holds the ranks of the job that the call
	// waited for, or the first of them.
	Awaited []int `json:"awaited,omitempty"`
	// Waits lists the ranks of the job that this rank's calls in flight wait for, as far as the backend
	// knows. It is set only in an answer to another rank's question.
	Waits []int `json:"waits,omitempty"`
	// DeadlinePassed says that the deadline of a call in flight has passed. A rank sets it when
	// it asks the other ranks why. The deadline may be earlier than the call's timeout: a
	// request to stop leaves the calls in flight less time.
	DeadlinePassed bool `json:"deadline_passed,omitzero"`

	Capacity int    `json:"capacity"` // number of entries of the ring
	Recorded uint64 `json:"recorded"` // number of calls so far, of which the ring holds the latest
	// LostGroups is the number of groups that did not fit into the record's table of groups.
	// LostSites is the number of calls whose call site did not fit into the table of call sites.
	LostGroups uint64 `json:"lost_groups,omitzero"`
	LostSites  uint64 `json:"lost_sites,omitzero"`

	Groups  []Membership `json:"groups"`
	Sites   [][]Frame    `json:"sites"`   // the call sites, innermost frame first
	Records []Record     `json:"records"` // ordered by number
}

// NoRecord returns the dump of a rank that keeps no record. Its time Taken is zero.
func NoRecord(rank, size int) *Dump { return &Dump{Version: version, Rank: rank, WorldSize: size} }

// An Ending says how a process ended. The zero value means that the process still ran, or that the
// launcher ended it because another process failed.
type Ending string

// The endings of a process.
const (
	Suspended Ending = "suspended"
	Replaced  Ending = "replaced"  // by another program: it called exec
	Succeeded Ending = "succeeded" // it exited with code 0
	Died      Ending = "died"      // it exited with another code, or by a signal
)

// Membership is a process group as one of its members recorded it. Enqueued, Started and Completed
// are the sequence numbers of its latest collectives, without Send and Recv.
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
	Number  uint64        `json:"number"` // number of the call in this process, from 1
	Group   string        `json:"group"`
	Call    Call          `json:"call"`
	Name    string        `json:"name,omitzero"` // the caller's name of the call
	Bytes   int           `json:"bytes"`         // size of Count elements; 0 if the call has several types
	State   State         `json:"state"`
	Queued  time.Time     `json:"queued"`
	Running time.Time     `json:"running,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Timeout time.Duration `json:"timeout_ns,omitzero"`
	Site    int           `json:"site,omitzero"` // 1 + index into Dump.Sites; 0 if unknown
}

func (r Record) String() string {
	if r.Name != "" {
		return r.Call.String() + " " + r.Name
	}
	return r.Call.String()
}

// InFlight reports whether the call had neither ended nor failed.
func (r Record) InFlight() bool { return r.Ended.IsZero() }

// Frames returns the call site of a record, innermost frame first. It returns nil if the site is
// not known.
func (d *Dump) Frames(r Record) []Frame {
	if r.Site < 1 || r.Site > len(d.Sites) {
		return nil
	}
	return d.Sites[r.Site-1]
}
