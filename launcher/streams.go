package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Streams is a set of a worker's output streams, numbered as torchrun does.
type Streams uint8

const (
	NoStream Streams = 0
	Stdout   Streams = 1
	Stderr   Streams = 2
)

// StreamMap gives each local rank a set of streams. The zero value gives all of
// them none.
type StreamMap struct {
	all     Streams
	byLocal map[int]Streams // when not nil, ranks that are missing have none
}

// AllStreams gives every local rank the same streams.
func AllStreams(s Streams) StreamMap { return StreamMap{all: s} }

// ParseStreamMap reads torchrun's notation: "0" none, "1" stdout, "2" stderr,
// "3" both, for all local ranks; or for some of them, as in "0:3,12:1".
func ParseStreamMap(text string) (StreamMap, error) {
	if !strings.Contains(text, ":") {
		s, err := parseStreams(text)
		return StreamMap{all: s}, err
	}
	m := StreamMap{byLocal: map[int]Streams{}}
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

func parseStreams(text string) (Streams, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 8)
	if err != nil || n > uint64(Stdout|Stderr) {
		return 0, fmt.Errorf("%q: want 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map such as 0:3,1:1", text)
	}
	return Streams(n), nil
}

// Of returns the streams of a local rank.
func (m StreamMap) Of(local int) Streams {
	if m.byLocal != nil {
		return m.byLocal[local]
	}
	return m.all
}

// Any reports whether any local rank has a stream.
func (m StreamMap) Any() bool {
	for _, s := range m.byLocal {
		if s != NoStream {
			return true
		}
	}
	return m.all != NoStream
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
