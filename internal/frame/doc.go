// Package frame sends messages over a stream, such as a connection. A message is sent as its length, in
// four bytes, little-endian, and its JSON encoding.
//
// [Encode] and [Decode] convert messages. An [Outbox] is the queue of the encoded messages that are to be
// written on a connection, so that a sender never waits for the other end.
package frame
