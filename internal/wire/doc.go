// Package wire holds the code that the servers and clients of a job's connections share.
//
// [Listen] and [Loopback] know the addresses at which a host is reached, also on a host whose loopback interface
// has no IPv4. [Accept] accepts the connections of a listener, also after failures. [FileLimit] and [ShareFiles]
// keep connections from using all file descriptors of a process. [Rejections] logs the connections that a server
// rejects, at a rate at which a flood of rejections cannot fill a disk.
//
// A message is sent as its length, in four bytes, little-endian, and its JSON encoding: [Encode] and [Decode]
// convert messages. An [Outbox] is the queue of the encoded messages that are to be written on a connection, so
// that a sender never waits for the other end.
package wire
