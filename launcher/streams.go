package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// streamSet is a set of a worker's output streams, numbered as torchrun does.
type streamSet uint8

const (
	noStream     streamSet = 0
	stdoutStream streamSet = 1
	stderrStream streamSet = 2
)

// StreamMap gives each local rank a set of streams. The zero value gives all of
// them none.
type StreamMap struct {
	all     streamSet
	byLocal map[int]streamSet // when not nil, ranks that are missing have none
}

// allStreams gives every local rank the same streams.
func allStreams(s streamSet) StreamMap { return StreamMap{all: s} }

// ParseStreamMap reads torchrun's notation: "0" none, "1" stdout, "2" stderr,
// "3" both, for all local ranks; or for some of them, as in "0:3,12:1".
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

// String is the notation that ParseStreamMap reads.
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

// Highest is the highest local rank that is named, or -1 if none is.
func (m StreamMap) Highest() int {
	highest := -1
	for local := range m.byLocal {
		highest = max(highest, local)
	}
	return highest
}
