package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
)

// keySize is the size of a key file in bytes.
const keySize = 32

// Key encrypts the secrets of one sandbox.
type Key struct {
	aead cipher.AEAD
	mac  []byte
}

// newKey derives the keys for encryption and for digests from the content of a key file.
func newKey(raw []byte) (*Key, error) {
	enc, err := hkdf.Key(sha256.New, raw, nil, "agbox secrets: encryption", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key for encryption: %w", err)
	}
	mac, err := hkdf.Key(sha256.New, raw, nil, "agbox secrets: digests", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key for digests: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return nil, fmt.Errorf("AES: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("AES-GCM: %w", err)
	}
	return &Key{aead: aead, mac: mac}, nil
}

// Seal encrypts with AES-256-GCM. about says where the result is stored; Open needs the
// same text, so a record cannot take the place of another one.
func (k *Key) Seal(plain []byte, about string) []byte {
	return k.aead.Seal(nil, nil, plain, []byte(about))
}

// Open decrypts what Seal returned. It fails for anything that was changed, or was sealed
// with another key or about something else.
func (k *Key) Open(sealed []byte, about string) ([]byte, error) {
	plain, err := k.aead.Open(nil, nil, sealed, []byte(about))
	if err != nil {
		return nil, errors.New("the values do not belong to the key, or were changed")
	}
	return plain, nil
}

// Sum is a digest of data that tells nothing about it without the key.
func (k *Key) Sum(data []byte) []byte {
	h := hmac.New(sha256.New, k.mac)
	_, _ = h.Write(data) // never fails
	return h.Sum(nil)
}
