"""The emulated BPU: conversion to integers, execution plans, compiled programs."""
