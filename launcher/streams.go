package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// streamSet is a set of a worker's output streams, with torchrun's numbers.
type streamSet uint8

const (
	noStream     streamSet = 0
	stdoutStream streamSet = 1
	stderrStream streamSet = 2
)

// StreamMap maps each local rank to a set of output streams. The zero value maps every
// rank to the empty set.
type StreamMap struct {
	all     streamSet
	byLocal map[int]streamSet // if not nil, it is used instead of the field all; a rank without an entry has no stream
}

// allStreams returns a StreamMap that maps every local rank to s.
func allStreams(s streamSet) StreamMap { return StreamMap{all: s} }

// ParseStreamMap parses torchrun's notation: "0" for no stream, "1" for stdout, "2" for
// stderr and "3" for both, of all local ranks. "0:3,12:1" means both streams of local rank
// 0, and the stdout of local rank 12.
func ParseStreamMap(text string) (StreamMap, error) {
	if !strings.Contains(text, ":") {
		s, err := parseStreams(text)
		return StreamMap{all: s}, err
	}
	m := StreamMap{byLocal: map[int]streamSet{}}
	for entry := range strings.SplitSeq(text, ",") {
		rank, streams, found := strings.Cut(entry, ":")
		local, err := strconv.Atoi(strings.TrimSpace(rank))
		if !found || err != nil || local < 0 {
			return StreamMap{}, fmt.Errorf("%q: want a local rank and its streams, as in 0:3", entry)
		}
		if _, twice := m.byLocal[local]; twice {
			return StreamMap{}, fmt.Errorf("local rank %d is named twice", local)
		}
		if m.byLocal[local], err = parseStreams(streams); err != nil {
			return StreamMap{}, err
		}
	}
	return m, nil
}

func parseStreams(text string) (streamSet, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 8)
	if err != nil || n > uint64(stdoutStream|stderrStream) {
		return 0, fmt.Errorf("%q: want 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map such as 0:3,1:1", text)
	}
	return streamSet(n), nil
}

// of returns the streams of a local rank.
func (m StreamMap) of(local int) streamSet {
	if m.byLocal != nil {
		return m.byLocal[local]
	}
	return m.all
}

// any reports whether any local rank has a stream.
func (m StreamMap) any() bool {
	for _, s := range m.byLocal {
		if s != noStream {
			return true
		}
	}
	return m.all != noStream
}

// String returns m in the notation of ParseStreamMap.
func (m StreamMap) String() string {
	if m.byLocal == nil {
		return strconv.Itoa(int(m.all))
	}
	var entries []string
	for _, local := range slices.Sorted(maps.Keys(m.byLocal)) {
		entries = append(entries, fmt.Sprintf("%d:%d", local, m.byLocal[local]))
	}
	return strings.Join(entries, ",")
}

// Highest returns the highest local rank that m names, or -1 if it names none.
func (m StreamMap) Highest() int {
	highest := -1
	for local := range m.byLocal {
		highest = max(highest, local)
	}
	return highest
}
