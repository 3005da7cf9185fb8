package cupti

import "time"

// Kind is the kind of an activity.
type Kind int

// The kinds of activities.
const (
	Kernel Kind = iota
	Memcpy
	Memset
	Call // a call of CUDA's driver or runtime library by the host
)

// Activity is a kernel, a copy or a memset that a GPU ran, or the call by which the host enqueued it.
type Activity struct {
	Kind       Kind
	Name       string // the kernel's name without its parameters, the copy's direction, or the call's function
	Begin, End time.Time
	// Correlation links work to the call that enqueued it. For a graph, it links all nodes to the call
	// that launched the graph.
	Correlation uint32

	// These are zero in a Call.
	Stream uint32 // CUPTI's number of the stream
	Graph  uint32 // the number of the graph that the work is a node of; 0 if none
	Bytes  uint64 // the size of a copy or memset

	Thread uint32 // the host's thread that made a Call
}

// copies are the directions of copies, by CUPTI's numbers (CUpti_ActivityMemcpyKind).
var copies = map[uint8]string{1: "copy HtoD", 2: "copy DtoH", 3: "copy HtoA", 4: "copy AtoH", 5: "copy AtoA", 6: "copy AtoD", 7: "copy DtoA",
	8: "copy DtoD", 9: "copy HtoH", 10: "copy PtoP"}
