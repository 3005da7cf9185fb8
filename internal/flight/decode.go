package flight

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// The JSON of a record takes more than recordText bytes, so a dump of n bytes has at most
// n/recordText records. fewRecords more are accepted, because people write short records by
// hand.
const (
	recordText = 100
	fewRecords = 16
)

// maxSiteFrames is the largest number of frames of a call site: a line in the recorder's memory
// has at least five bytes.
const maxSiteFrames = len(siteRecord{}.text) / 5

// Decode decodes the JSON of a dump, which may come from any source. It takes at most a few times
// the memory of data. It returns an error for a dump that no recorder can have written.
func Decode(data []byte) (*Dump, error) {
	d, err := decodeDump(data)
	if err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	return d, nil
}

// decodeDump is Decode without the prefix of errors.
func decodeDump(data []byte) (*Dump, error) {
	d := &Dump{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, err
	}
	if d.Version != version {
		return nil, fmt.Errorf("a dump of version %d; this program reads version %d", d.Version, version)
	}
	return d, d.check()
}

// UnmarshalJSON decodes a dump. It returns an error if a list in the dump is longer than a
// recorder's.
func (d *Dump) UnmarshalJSON(data []byte) (err error) {
	type fields Dump
	var lists struct { // these fields replace the fields with the same names in Dump
		*fields
		Awaited json.RawMessage `json:"awaited"`
		Groups  json.RawMessage `json:"groups"`
		Sites   json.RawMessage `json:"sites"`
		Records json.RawMessage `json:"records"`
	}
	lists.fields = (*fields)(d)
	if err := json.Unmarshal(data, &lists); err != nil {
		return err
	}
	if d.Awaited, err = decodeList[int]("awaited ranks", lists.Awaited, maxAwaited); err != nil {
		return err
	}
	if d.Groups, err = decodeList[Membership]("groups", lists.Groups, maxGroups); err != nil {
		return err
	}
	sites, err := decodeList[json.RawMessage]("call sites", lists.Sites, maxSites)
	if err != nil {
		return err
	}
	d.Sites = make([][]Frame, len(sites))
	for i, s := range sites {
		if d.Sites[i], err = decodeList[Frame]("frames of a call site", s, maxSiteFrames); err != nil {
			return err
		}
	}
	d.Records, err = decodeList[Record]("records in so many bytes", lists.Records, len(data)/recordText+fewRecords)
	return err
}

// decodeList decodes a JSON array of at most most elements, one element at a time. It returns nil if
// there is no array.
func decodeList[T any](what string, text json.RawMessage, most int) (list []T, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	switch begin, err := dec.Token(); {
	case err != nil:
		return nil, err
	case begin == nil:
		return nil, nil
	case begin != json.Delim('['):
		return nil, fmt.Errorf("%s: want a list, not %v", what, begin)
	}
	list = []T{}
	for dec.More() {
		if len(list) == most {
			return nil, fmt.Errorf("more than %d %s", most, what)
		}
		var v T
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
