package rpc

import "fmt"

// Protocol is this build's version of guest/v1. Fields are only ever added, so every
// version from 1 on is compatible.
const Protocol = 3

// LimitsSince is the first version whose supervisors enforce the limits of a
// StartRequest: timeouts, and the bytes of output that are kept.
const LimitsSince = 2

// AgentsSince is the first version whose supervisors have the service Agents.
const AgentsSince = 3

const (
	// MaxFrame is the maximum length of a request's frame in bytes. It is ttrpc's limit.
	MaxFrame = 4 << 20
	// MaxReply is the maximum length of a reply's frame in bytes. An ExecRecord, whose
	// longest field is the failure message, is much smaller.
	MaxReply = 64 << 10
	// MaxChunk is the maximum length of a chunk of a transfer in bytes.
	MaxChunk = 256 << 10
	// maxWord is the maximum length of the other messages of a transfer in bytes.
	maxWord = 64 << 10
	// MaxFailureMessage is the maximum length of ExecRecord.failure_message in bytes.
	MaxFailureMessage = 4 << 10
	// MaxBootID is the maximum length of a boot id in bytes.
	MaxBootID = 64
	// MaxRecordedCommand is the maximum size of RecordedRequest.command in bytes, with
	// RecordedWord for each word.
	MaxRecordedCommand = 4 << 10
	// RecordedWord is the most that the encoding adds to a word of a recorded command.
	RecordedWord = 4
	// MaxRecordedText is the maximum length of the other texts of a RecordedRequest.
	MaxRecordedText = 1 << 10
	// MaxRecordedRequest is more than the encoded size of any RecordedRequest in bytes.
	MaxRecordedRequest = 8 << 10
	// MaxWatched is the maximum number of execs in one WatchRequest.
	MaxWatched = 16 << 10
	// MaxStdin is the maximum length of the data in one WriteStdinRequest in bytes.
	MaxStdin = 1 << 20
	// SmallStdin is the maximum length of data for which a WriteStdin may block without
	// a bound. If the process does not read, a call with more data returns early, with
	// the count of the written bytes.
	SmallStdin = 4 << 10
	// MaxWriter is the maximum length of the name of a writer of standard input in bytes.
	MaxWriter = 64
)

// The kernel's limits in execve(2), with the usual stack limit of 8 MiB.
const (
	// maxArgument is the maximum length of a single argument or variable in bytes,
	// including the terminating NUL.
	maxArgument = 128 << 10
	// maxArguments is the maximum size of command line and environment of a request
	// together, in bytes, including a pointer for each entry. It leaves 128 KiB of the
	// kernel's 2 MiB for the environment of the container.
	maxArguments = 2<<20 - 128<<10
)

// CheckArguments returns an error if the kernel would refuse the command line and
// environment.
func CheckArguments(command, env []string) error {
	const pointer = 8
	total := 0
	for _, list := range [][]string{command, env} {
		for _, s := range list {
			if len(s)+1 > maxArgument {
				return fmt.Errorf("one argument or variable has %d bytes, more than the %d that Linux accepts", len(s), maxArgument-1)
			}
			total += len(s) + 1 + pointer
		}
	}
	if total > maxArguments {
		return fmt.Errorf("command line and environment have %d bytes, more than the %d that Linux accepts", total, maxArguments)
	}
	return nil
}
