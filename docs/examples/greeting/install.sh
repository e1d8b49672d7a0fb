#!/bin/sh
echo "$GREETING" >/etc/greeting
