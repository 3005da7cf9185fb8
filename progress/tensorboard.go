package progress

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// TensorBoardPrefix before a folder in Options.File makes a Meter write event files for TensorBoard into that folder.
const TensorBoardPrefix = "tb:"

// eventFile is an event file of TensorBoard: a TFRecord file of messages tensorflow.Event
// (https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto).
type eventFile struct {
	*os.File
	buf []byte
}

// The fields of the messages Event, Summary, Summary.Value and SessionLog.
const (
	eventWallTime, eventStep, eventFileVersion, eventSummary, eventSessionLog = 1, 2, 3, 5, 7
	summaryValue                                                              = 1
	valueTag, valueSimple                                                     = 1, 2
	sessionStatus                                                             = 1
	sessionStart                                                              = 1
)

// newEventFile makes an event file in a folder. It tells TensorBoard to forget the points of earlier files of the folder after
// the step `first`.
func newEventFile(dir string, first int, now time.Time) (file, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// TensorBoard reads the files of a folder in the order of their names.
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%d.%s.%d", now.UnixNano()/1e3, host, os.Getpid())), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	e := &eventFile{File: f}
	version := protowire.AppendString(protowire.AppendTag(nil, eventFileVersion, protowire.BytesType), "brain.Event:2")
	start := protowire.AppendVarint(protowire.AppendTag(nil, sessionStatus, protowire.VarintType), sessionStart)
	if err = e.append(now, 0, version); err == nil {
		err = e.append(now, first+1, protowire.AppendBytes(protowire.AppendTag(nil, eventSessionLog, protowire.BytesType), start))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return e, nil
}

func (e *eventFile) write(now time.Time, step int, values []Value) error {
	var summary []byte
	for _, v := range values {
		value := protowire.AppendString(protowire.AppendTag(nil, valueTag, protowire.BytesType), v.Name)
		value = protowire.AppendFixed32(protowire.AppendTag(value, valueSimple, protowire.Fixed32Type), math.Float32bits(float32(v.Number)))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, summaryValue, protowire.BytesType), value)
	}
	return e.append(now, step, protowire.AppendBytes(protowire.AppendTag(nil, eventSummary, protowire.BytesType), summary))
}

// append appends an event, whose remaining fields are encoded already.
func (e *eventFile) append(now time.Time, step int, fields []byte) error {
	event := protowire.AppendFixed64(protowire.AppendTag(nil, eventWallTime, protowire.Fixed64Type), math.Float64bits(float64(now.UnixNano())/1e9))
	event = protowire.AppendVarint(protowire.AppendTag(event, eventStep, protowire.VarintType), uint64(step))
	event = append(event, fields...)
	e.buf = binary.LittleEndian.AppendUint64(e.buf[:0], uint64(len(event)))
	e.buf = binary.LittleEndian.AppendUint32(e.buf, maskedCRC(e.buf))
	e.buf = append(e.buf, event...)
	e.buf = binary.LittleEndian.AppendUint32(e.buf, maskedCRC(event))
	_, err := e.Write(e.buf)
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is the checksum of TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord).
func maskedCRC(b []byte) uint32 {
	crc := crc32.Checksum(b, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}
